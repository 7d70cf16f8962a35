// Guidance, tensor and pipeline parallelism: what is not about sequences.

#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>

#include <random>
#include <string>

#include "mesh/cfg_parallel.h"
#include "mesh/pipeline_p2p.h"
#include "mesh/tensor_parallel.h"
#include "tests/mesh/random_tensor.h"
#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using testing::ChildRank;
using testing::maxDifference;
using testing::randomInteger;
using testing::randomTensor;
using testing::Ranks;

// ---- guidance -----------------------------------------------------------------------------------------------

TEST_CASE("rank has a branch", "[.][child]") {
  ChildRank rank;
  CfgParallel branches(rank.mesh());
  CHECK(branches.branch() == rank.mesh().coordinate(MeshDim::kCfg));
  const at::Tensor both = branches.gather(at::full({1, 3}, static_cast<double>(branches.branch())));
  CHECK(both.sizes() == at::IntArrayRef({2, 3}));
  CHECK(both[0].eq(0).all().item<bool>());
  CHECK(both[1].eq(1).all().item<bool>());
  CHECK(rank.mesh().group(MeshDim::kCfg).bytesSent() == 3 * sizeof(float));
}

TEST_CASE("cfg parallel: every rank has both branches, in their order", "[mesh]") {
  Ranks("rank has a branch", {.degrees = {.cfg = 2}}).requireSuccess();
  Ranks("rank has a branch", {.degrees = {.cfg = 2, .ulysses = 2}}).requireSuccess();
}

// ---- tensor parallel ----------------------------------------------------------------------------------------

TEST_CASE("rank has some features", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().group(MeshDim::kTensorParallel);
  const TensorParallel ranks(group);
  std::mt19937_64 random(7);
  for (int i = 0; i < 10; ++i) {
    const int64_t own = randomInteger(1, 9, random);
    const int64_t features = own * ranks.degree();
    const auto part = [&](const at::Tensor& x) { return x.narrow(-1, own * ranks.rank(), own); };
    const at::Tensor x = randomTensor({2, 5, features}, random);
    const at::Tensor y = randomTensor({2, 5, features}, random).mul(40);
    const at::Tensor weight = randomTensor({features}, random);
    const at::Tensor other = randomTensor({features}, random);
    const auto normed = ranks.rmsNorm({part(x), part(y)}, {part(weight), part(other)}, 1e-6);
    CHECK(maxDifference(normed[0], part(at::rms_norm(x, {features}, weight, 1e-6))) <= 2e-6);
    CHECK(maxDifference(normed[1], part(at::rms_norm(y, {features}, other, 1e-6))) <= 2e-6);

    const at::Tensor kernel = randomTensor({6, features}, random);
    const at::Tensor bias = randomTensor({6}, random);
    const uint64_t before = group.bytesSent();
    const at::Tensor sum = ranks.rowLinear(part(x), part(kernel), bias);
    CHECK(group.bytesSent() - before == 2 * (2 * 5 * 6) * sizeof(float) * (ranks.degree() - 1) / ranks.degree());
    CHECK(maxDifference(sum, at::linear(x, kernel, bias)) <= 1e-5);
  }
}

TEST_CASE("tensor parallel: norms and products of divided features are those of whole ones", "[mesh]") {
  for (const uint32_t size : {2U, 3U})
    Ranks("rank has some features", {.degrees = {.tp = size}}).requireSuccess();
}

TEST_CASE("tensor parallel: alone it is torch's own", "[mesh]") {
  std::mt19937_64 random(8);
  const TensorParallel alone;
  const at::Tensor x = randomTensor({3, 8}, random);
  const at::Tensor weight = randomTensor({8}, random);
  const at::Tensor kernel = randomTensor({4, 8}, random);
  const at::Tensor bias = randomTensor({4}, random);
  CHECK(alone.rmsNorm({x}, {weight}, 1e-6)[0].equal(at::rms_norm(x, {8}, weight, 1e-6)));
  CHECK(alone.rowLinear(x, kernel, bias).equal(at::linear(x, kernel, bias)));
}

// ---- pipeline -----------------------------------------------------------------------------------------------

TEST_CASE("pipeline: every layer is on one rank, in order, and shares differ by one at most", "[mesh]") {
  for (int64_t layers = 1; layers <= 12; ++layers) {
    for (int64_t degree = 1; degree <= layers; ++degree) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < degree; ++rank) {
        const LayerRange own = pipelineLayers(layers, degree, rank);
        CHECK(own.begin == next);
        CHECK(own.end - own.begin >= layers / degree);
        CHECK(own.end - own.begin <= (layers + degree - 1) / degree);
        next = own.end;
      }
      CHECK(next == layers);
    }
  }
}

constexpr int64_t kFeatures = 6;

// Rank r doubles what it gets, in place, and adds r; the last one keeps the first two features.
at::Tensor layersOf(int rank, int size, at::Tensor x) {
  x = x.mul_(2).add_(rank);
  return rank == size - 1 ? x.narrow(-1, 0, 2) : x;
}

TEST_CASE("rank has some layers", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().group(MeshDim::kPipeline);
  std::mt19937_64 random(9);
  for (size_t count = 1; count <= 3; ++count) {
    PipelineP2P pipeline(group, at::kCPU);
    uint64_t sent_by_a_run = 0;
    for (int run = 0; run < 4; ++run) {
      const at::Tensor inputs = randomTensor({static_cast<int64_t>(count), 1, 5, kFeatures}, random);
      std::vector<size_t> order;
      const uint64_t before = group.bytesSent();
      const auto results = pipeline.run(count, [&](size_t index, at::Tensor x) {
        order.push_back(index);
        CHECK(x.defined() == (group.rank() > 0));
        if (group.rank() == 0) x = inputs[static_cast<int64_t>(index)].clone();
        return layersOf(group.rank(), group.size(), x);
      });
      sent_by_a_run = group.bytesSent() - before;
      REQUIRE(results.size() == count);
      for (size_t i = 0; i < count; ++i) {
        CHECK(order[i] == i);
        at::Tensor expected = inputs[static_cast<int64_t>(i)].clone();
        for (int r = 0; r < group.size(); ++r)
          expected = layersOf(r, group.size(), expected);
        CHECK(results[i].equal(expected));
      }
    }
    // Of a later run: features alone.
    const bool last = group.rank() == group.size() - 1;
    CHECK(sent_by_a_run == count * 5 * sizeof(float) * (last ? 2 * (group.size() - 1) : kFeatures));
  }
}

TEST_CASE("pipeline: micro-batches pass all ranks in order, and every rank has the results", "[mesh]") {
  for (const uint32_t size : {2U, 3U})
    Ranks("rank has some layers", {.degrees = {.pp = size}}).requireSuccess();
}

}  // namespace
}  // namespace latentd::mesh
