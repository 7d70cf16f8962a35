#include "stages/noise/noise.h"

#include <vector>

#include "tests/support/catch.h"

namespace latentd::stages {
namespace {

// From diffusers.utils.torch_utils.randn_tensor with a CPU generator of torch 2.11.
struct Expected {
  uint64_t seed;
  std::vector<int64_t> shape;
  std::vector<double> first;  // elements
  double last;
  double sum;  // in double, of all elements
};

const Expected kExpected[] = {
    {0, {1, 16, 2, 4, 4}, {-0x1.20370ap+0, -0x1.270114p+0, -0x1.0097acp-2}, -0x1.a94a9ep+0, 0x1.ffb2537d14p+4},
    {42, {1, 16, 5, 16, 16}, {0x1.ed4a52p+0, 0x1.7cbea6p+0, 0x1.cd2acep-1}, 0x1.ed87ccp-2, 0x1.a4d23bc347fp+7},
    // Below 16 elements torch takes another path; and the largest seed.
    {18446744073709551615U,
     {1, 2, 1, 2, 3},
     {0x1.384264p+0, -0x1.926936p-2, 0x1.05e84p+0},
     0x1.6b655cp-1,
     -0x1.d089efp-3},
    {1234567890123, {1, 16, 2, 2, 2}, {-0x1.2317ep-1, -0x1.97ff1ap-3, 0x1.0a3c6cp+0}, -0x1.2e26c2p-1, 0x1.a52dc848p-2},
};

TEST_CASE("noise: the same seed gives the reference's latents, bit for bit", "[noise]") {
  for (const Expected& expected : kExpected) {
    INFO("seed " << expected.seed);
    const at::Tensor latents = initialLatents(expected.seed, expected.shape);
    CHECK(latents.scalar_type() == at::kFloat);
    CHECK(latents.sizes() == at::IntArrayRef(expected.shape));
    const at::Tensor flat = latents.flatten();
    for (size_t i = 0; i < expected.first.size(); ++i) {
      CHECK(flat[static_cast<int64_t>(i)].item<double>() == expected.first[i]);
    }
    CHECK(flat[-1].item<double>() == expected.last);
    // The order of a sum in double may differ; its size does not.
    CHECK(flat.to(at::kDouble).sum().item<double>() == Approx(expected.sum).epsilon(1e-12));
  }
}

TEST_CASE("noise: one call does not influence the next", "[noise]") {
  const at::Tensor first = initialLatents(7, {1, 4, 2, 4, 4});
  initialLatents(8, {1, 4, 2, 4, 4});
  CHECK(initialLatents(7, {1, 4, 2, 4, 4}).equal(first));
}

}  // namespace
}  // namespace latentd::stages
