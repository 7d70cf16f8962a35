#include "tests/mesh/random_shares.h"

#include <random>
#include <string>
#include <vector>

#include "mesh/ulysses.h"
#include "tests/mesh/heads.h"
#include "tests/mesh/random_tensor.h"
#include "tests/mesh/topology_list.h"
#include "tests/support/catch.h"

namespace latentd::mesh::testing {
namespace {

// Not contiguous: beside others in a fused projection, with rows outside the batch, one batch for all, or with heads
// apart.
at::Tensor stridedShare(const std::vector<int64_t>& shape, at::ScalarType dtype, at::Device device,
                        std::mt19937_64& random) {
  const auto made = [&](std::vector<int64_t> sizes) { return randomTensor(sizes, random).to(device, dtype); };
  switch (randomInteger(0, 3, random)) {
    case 0:
      return made({shape[0], shape[1], 3, shape[2], shape[3]}).select(2, 1);
    case 1:
      return made({shape[1], shape[0], shape[2], shape[3]}).transpose(0, 1);
    case 2:
      return made({1, shape[1], shape[2], shape[3]}).expand(shape);
    default:
      return made({shape[0], shape[2], shape[1], shape[3]}).transpose(1, 2);
  }
}

void checkRound(Mesh& mesh, const Heads& given) {
  ProcessGroup& group = mesh.group(MeshDim::kUlysses);
  HeadScatter& heads = mesh.headScatter();
  scatter(heads, given);  // whose targets are there then
  const uint64_t before = group.bytesSent();
  const Heads got = scatter(heads, given);
  const auto size = static_cast<uint64_t>(group.size());
  CHECK(group.bytesSent() - before == 3 * (given.query.nbytes() / size * (size - 1)));
  CHECK(heads.direct());
  CHECK(got.query.equal(scatterHeads(group, given.query).wait()));
  CHECK(got.key.equal(scatterHeads(group, given.key).wait()));
  CHECK(got.value.equal(scatterHeads(group, given.value).wait()));
  CHECK(got.query.device() == given.query.device());
  CHECK(got.query.is_contiguous());
}

}  // namespace

void scatterRandomShares(ChildRank& rank, const RandomShares& shares) {
  forEachTopology(rank, [&](const MeshDegrees& degrees) {
    const uint64_t seed = std::stoull(firstLine(rank));
    std::mt19937_64 random(seed + 64 * rank.rank());  // values
    std::mt19937_64 shapes(seed);                     // the same on all ranks
    for (int i = 0; i < shares.rounds; ++i) {
      const std::vector<int64_t> shape = {randomInteger(1, 2, shapes), shares.rows * randomInteger(1, 2, shapes),
                                          randomInteger(1, 2, shapes) * degrees.ulysses,
                                          shares.head_dim * randomInteger(1, 2, shapes)};
      const at::ScalarType dtype = std::vector{at::kFloat, at::kBFloat16, at::kHalf}[randomInteger(0, 2, shapes)];
      INFO(toString(degrees) << " " << at::IntArrayRef(shape) << " " << dtype);
      const auto share = [&] { return stridedShare(shape, dtype, rank.device(), random); };
      checkRound(rank.mesh(), {share(), share(), share()});
    }
  });
}

}  // namespace latentd::mesh::testing
