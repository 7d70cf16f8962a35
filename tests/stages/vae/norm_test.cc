#include "stages/vae/norm.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "stages/vae/norm_kernel.h"
#include "tests/stages/golden.h"
#include "tests/stages/temp_checkpoint.h"

namespace latentd::stages::vae {
namespace {

std::vector<float> randomValues(size_t count, float scale, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(generator);
  return values;
}

// The definition, in double precision.
double expected(const std::vector<float>& input, const std::vector<float>& gain, size_t index, bool silu) {
  const size_t channels = gain.size();
  const size_t first = index / channels * channels;
  double sum = 0;
  for (size_t c = 0; c < channels; ++c)
    sum += double{input[first + c]} * input[first + c];
  const double value = input[index] / std::max(std::sqrt(sum), 1e-12) * gain[index - first];
  return silu ? value / (1 + std::exp(-value)) : value;
}

TEST_CASE("norm: the kernel is the definition for every number of channels", "[vae]") {
  constexpr int64_t kPixels = 9;
  for (int64_t channels = 1; channels <= 70; ++channels) {
    const auto input = randomValues(kPixels * channels, 3, channels);
    const auto gain = randomValues(channels, 2, 1000 + channels);
    for (bool silu : {false, true}) {
      std::vector<float> output(input.size());
      normaliseBlock(NormBlock<float>{input.data(), output.data(), gain.data(), kPixels, channels}, silu);
      double worst = 0;
      for (size_t i = 0; i < input.size(); ++i)
        worst = std::max(worst, std::abs(output[i] - expected(input, gain, i, silu)));
      INFO(channels << " channels, silu " << silu);
      CHECK(worst <= 2e-6);
      std::vector<float> in_place = input;
      normaliseBlock(NormBlock<float>{in_place.data(), in_place.data(), gain.data(), kPixels, channels}, silu);
      CHECK(in_place == output);
    }
  }
}

TEST_CASE("norm: a bfloat16 pixel is the float32 result, rounded to nearest once", "[vae]") {
  constexpr int64_t kPixels = 50;
  constexpr int64_t kChannels = 21;
  auto input = randomValues(kPixels * kChannels, 3, 7);
  const auto gain = randomValues(kChannels, 2, 8);
  std::vector<BFloat16Bits> stored(input.size());
  for (size_t i = 0; i < input.size(); ++i) {
    const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(input[i]) >> 16);
    stored[i] = {bits};
    input[i] = std::bit_cast<float>(uint32_t{bits} << 16);
  }
  for (bool silu : {false, true}) {
    std::vector<float> exact(input.size());
    std::vector<BFloat16Bits> output(input.size());
    normaliseBlock(NormBlock<float>{input.data(), exact.data(), gain.data(), kPixels, kChannels}, silu);
    normaliseBlock(NormBlock<BFloat16Bits>{stored.data(), output.data(), gain.data(), kPixels, kChannels}, silu);
    size_t different = 0;
    for (size_t i = 0; i < exact.size(); ++i)
      different += at::BFloat16(exact[i]).x != output[i].bits;
    CHECK(different == 0);
  }
}

TEST_CASE("norm: zeros, tiny, huge and undefined pixels", "[vae]") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gain = {1000, 1000, 1000};
  const std::vector<float> input = {0, 0, 0, 1e-13F, 0, 0, 1e15F, -1e15F, 0, kNan, 1, 1};
  std::vector<float> output(input.size());
  normaliseBlock(NormBlock<float>{input.data(), output.data(), gain.data(), 4, 3}, false);
  CHECK(output[0] == 0);
  CHECK(output[3] == Approx(100));  // below 1e-12 the norm counts as 1e-12
  CHECK(output[6] == Approx(1000 * std::sqrt(0.5)));
  CHECK(std::isnan(output[9]));
  CHECK(std::isnan(output[10]));
  normaliseBlock(NormBlock<float>{input.data(), output.data(), gain.data(), 4, 3}, true);
  CHECK(output[0] == 0);
  CHECK(output[6] == Approx(1000 * std::sqrt(0.5)));  // sigmoid saturates at 1
  CHECK(std::abs(output[7]) < 1e-30);                 // and at 0
  CHECK(std::isnan(output[9]));
  std::vector<BFloat16Bits> undefined = {{0x7fc1}, {0x3f80}, {0x3f80}};
  normaliseBlock(NormBlock<BFloat16Bits>{undefined.data(), undefined.data(), gain.data(), 1, 3}, true);
  CHECK(std::isnan(std::bit_cast<float>(uint32_t{undefined[0].bits} << 16)));
}

TEST_CASE("norm: the operators of other devices and types agree with the kernel", "[vae]") {
  constexpr int64_t kChannels = 24;
  const at::Tensor gamma = at::randn({kChannels}).add(1.0).contiguous();
  testing::TempCheckpoint files;
  files.writeSafetensors("model.safetensors", R"({"gamma":{"dtype":"F32","shape":[24,1,1,1],"data_offsets":[0,96]}})",
                         std::string(static_cast<const char*>(gamma.const_data_ptr()), gamma.nbytes()));
  auto reader = WeightReader::open(files.path());
  REQUIRE(testing::problem(reader.status()) == "");
  const RmsNorm norm = RmsNorm::load(LayerLoader{.reader = &*reader}, kChannels, 3);
  REQUIRE(testing::problem(reader->finish()) == "");
  const at::Tensor half = at::randn({3, 40, 50, kChannels}).to(at::kHalf);  // enough for several threads
  const at::Tensor input = half.to(at::kFloat);
  for (bool silu : {false, true}) {
    at::Tensor by_operators = at::empty_like(half);
    at::Tensor by_kernel = at::empty_like(input);
    silu ? norm.forwardSilu(half, by_operators) : norm.forward(half, by_operators);
    silu ? norm.forwardSilu(input, by_kernel) : norm.forward(input, by_kernel);
    // Half precision's rounding of values up to 8.
    CHECK(testing::maxAbsDifference(by_operators, by_kernel) <= 4e-3);
    CHECK(by_kernel.abs().max().item<double>() > 1.0);
  }
}

}  // namespace
}  // namespace latentd::stages::vae
