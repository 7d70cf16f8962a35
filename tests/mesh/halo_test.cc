#include "mesh/halo.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "mesh/spatial_shard.h"
#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using testing::ChildRank;
using testing::Ranks;

// The same on every rank, from a seed.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  at::ScalarType dtype() {
    constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kByte, at::kDouble};
    return kTypes[between(0, std::size(kTypes) - 1)];
  }
  std::vector<int64_t> heights(int ranks, int64_t least) {
    std::vector<int64_t> heights(ranks);
    for (int64_t& height : heights)
      height = between(least, least + 4);
    return heights;
  }

 private:
  std::mt19937 random_;
};

// Values that differ everywhere, as far as the type can hold them apart.
at::Tensor image(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return at::arange(elements, at::kLong).remainder_(251).view(shape).to(dtype);
}

int64_t startOf(const std::vector<int64_t>& heights, int rank) {
  return std::accumulate(heights.begin(), heights.begin() + rank, int64_t{0});
}

// Counts what torch's allocator hands out on this thread while it lives.
class Allocations final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { count += size > 0; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t count = 0;
};

struct Case {
  std::vector<int64_t> heights;
  at::Tensor whole;
  int64_t dim = 0;
  int64_t above = 0;
  int64_t below = 0;
};

Case draw(Draw& random, int ranks) {
  Case one;
  one.above = random.between(0, 2);
  one.below = random.between(0, 2);
  one.heights = random.heights(ranks, std::max<int64_t>(1, std::max(one.above, one.below)));
  one.dim = random.between(0, 3);
  std::vector<int64_t> shape(4);
  for (int64_t& size : shape)
    size = random.between(1, 5);
  shape[one.dim] = startOf(one.heights, ranks);
  one.whole = image(shape, random.dtype());
  return one;
}

// What a rank's rows look like with their halo, cut from the whole image inside a border of zeros.
at::Tensor expected(const Case& one, int rank) {
  std::vector<int64_t> border(2 * (one.whole.dim() - one.dim), 0);
  border[border.size() - 2] = one.above;
  border[border.size() - 1] = one.below;
  return at::constant_pad_nd(one.whole, border)
      .narrow(one.dim, startOf(one.heights, rank), one.heights[rank] + one.above + one.below);
}

// This rank's rows, with a halo that is still anything.
at::Tensor withHoles(const Case& one, int rank, bool channels_last) {
  at::Tensor padded = at::full_like(expected(one, rank), 77);
  if (channels_last) padded = padded.contiguous(at::MemoryFormat::ChannelsLast);
  padded.narrow(one.dim, one.above, one.heights[rank])
      .copy_(one.whole.narrow(one.dim, startOf(one.heights, rank), one.heights[rank]));
  return padded;
}

TEST_CASE("rank that fills halos", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().group(MeshDim::kSpatial);
  HaloExchange halo(group);
  Draw random(static_cast<uint32_t>(std::stoul(rank.setup())));
  for (int i = 0; i < 60; ++i) {
    const Case one = draw(random, group.size());
    const at::Tensor want = expected(one, group.rank());
    const at::Tensor padded = withHoles(one, group.rank(), i % 3 == 1);
    const uint64_t before = group.bytesSent();
    const uint64_t operations = group.submitted();
    halo.fill(padded, one.dim, one.above, one.below);
    INFO("case " << i << ", rank " << group.rank() << ", dim " << one.dim << ", halo " << one.above << " and "
                 << one.below);
    CHECK(padded.equal(want));
    CHECK(padded.scalar_type() == one.whole.scalar_type());
    // Upwards the rows that the rank above lacks below it, downwards the other ones; one batch for all.
    const uint64_t row = one.whole.nbytes() / one.whole.size(one.dim);
    const uint64_t rows = (group.rank() > 0 ? one.below : 0) + (group.rank() + 1 < group.size() ? one.above : 0);
    CHECK(group.bytesSent() - before == row * rows);
    CHECK(group.submitted() - operations <= 1);
  }
}

TEST_CASE("rank that fills halos again and again", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().group(MeshDim::kSpatial);
  HaloExchange halo(group);
  std::vector<at::Tensor> layers;
  for (const int64_t width : {3, 17, 64, 5})
    layers.push_back(at::empty({4, 6, width, 8}));
  const auto pass = [&] {
    for (const at::Tensor& layer : layers)
      halo.fill(layer, 1, 1, 1);
  };
  pass();
  // Four transfers of the widest layer: rows of [4, 1, 64, 8] floats.
  const uint64_t neighbours = (group.rank() > 0) + (group.rank() + 1 < group.size());
  CHECK(halo.bufferBytes() == neighbours * 2 * 4 * 64 * 8 * sizeof(float));
  const auto allocations = std::make_shared<Allocations>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
    at::empty({1});
    CHECK(allocations->count == 1);  // they are seen
    for (int i = 0; i < 5; ++i)
      pass();
  }
  CHECK(allocations->count == 1);
  CHECK(halo.bufferBytes() == neighbours * 2 * 4 * 64 * 8 * sizeof(float));
}

TEST_CASE("rank that gathers shards", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().group(MeshDim::kSpatial);
  HaloExchange halo(group);
  Draw random(static_cast<uint32_t>(std::stoul(rank.setup())));
  for (int i = 0; i < 40; ++i) {
    INFO("case " << i << ", rank " << group.rank());
    const std::vector<int64_t> heights = random.heights(group.size(), 1);
    const SpatialShard shard(halo, heights);
    const int64_t unit = random.between(1, 3);
    const int64_t dim = random.between(0, 3);
    std::vector<int64_t> shape(4);
    for (int64_t& size : shape)
      size = random.between(1, 4);
    shape[dim] = unit * shard.height();
    at::Tensor whole = image(shape, random.dtype());
    const bool channels_last = random.between(0, 1) == 1;
    if (channels_last) whole = whole.contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor sliced = shard.slice(whole, dim, unit);
    CHECK(sliced.size(dim) == unit * heights[group.rank()]);
    CHECK(sliced.equal(whole.narrow(dim, unit * startOf(heights, group.rank()), sliced.size(dim))));
    const at::Tensor local =
        sliced.contiguous(channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
    const at::Tensor gathered = shard.gather(local, dim);
    CHECK(gathered.equal(whole));
    CHECK(gathered.is_contiguous(local.suggest_memory_format()));
    const int root = static_cast<int>(random.between(0, group.size() - 1));
    const uint64_t before = group.bytesSent();
    const at::Tensor there = shard.gatherTo(root, local, dim);
    CHECK(there.defined() == (group.rank() == root));
    if (there.defined()) {
      CHECK(there.equal(whole));
      CHECK(there.is_contiguous(local.suggest_memory_format()));
    }
    CHECK(group.bytesSent() - before == (group.rank() == root ? 0 : local.nbytes()));
  }
}

TEST_CASE("rank that agrees on shards", "[.][child]") {
  ChildRank rank;
  ProcessGroup& group = rank.mesh().group(MeshDim::kSpatial);
  HaloExchange halo(group);
  const auto agree = [&](int64_t given, int64_t whole, int64_t unit) {
    return SpatialShard::agree(halo, at::kCPU, given, whole, unit);
  };
  const auto refusal = [&](int64_t given, int64_t whole, int64_t unit) {
    const auto shard = agree(given, whole, unit);
    CHECK(shard.status().code() == absl::StatusCode::kInvalidArgument);
    return messageOf(shard.status());
  };
  REQUIRE(group.size() == 3);
  const int me = group.rank();
  CHECK(agree(7, 7, 1)->heights() == std::vector<int64_t>{3, 2, 2});
  CHECK(agree(56, 56, 8)->heights() == std::vector<int64_t>{3, 2, 2});
  const int64_t parts[] = {8, 32, 16};
  CHECK(agree(parts[me], 56, 8)->heights() == std::vector<int64_t>{1, 4, 2});
  // Ones that cannot work are refused by all, with the same words.
  CHECK(refusal(parts[me], 64, 8) ==
        "the ranks were given heights 8 + 32 + 16; expected 64 on each, or shards that add up to it, each a positive "
        "multiple of 8");
  const int64_t odd[] = {12, 28, 16};
  CHECK(refusal(odd[me], 56, 8).find("12 + 28 + 16") != std::string::npos);
  CHECK(refusal(me == 0 ? 56 : 8, 56, 8).find("56 + 8 + 8") != std::string::npos);
  CHECK(refusal(me == 0 ? 56 : 0, 56, 8).find("56 + 0 + 0") != std::string::npos);
}

void onRanks(const std::string& test_case, uint32_t ranks, const std::string& setup = "") {
  INFO(ranks << " ranks, setup " << setup);
  Ranks(test_case, {.degrees = {.spatial = ranks}, .setup = setup}).requireSuccess();
}

TEST_CASE("halo: random shards of any type and layout get their neighbours' rows, zeros at the borders", "[mesh]") {
  for (const uint32_t ranks : {2U, 3U, 4U, 8U})
    onRanks("rank that fills halos", ranks, std::to_string(100 + ranks));
}

TEST_CASE("halo: random shards of any type and layout, many", "[.][long]") {
  const auto first = GENERATE(range(0, 10));
  for (const uint32_t ranks : {2U, 3U, 4U, 8U})
    onRanks("rank that fills halos", ranks, std::to_string(1000 + 10 * first + ranks));
}

TEST_CASE("halo: one layer after another takes the same buffers, without an allocation", "[mesh]") {
  for (const uint32_t ranks : {2U, 3U})
    onRanks("rank that fills halos again and again", ranks);
}

TEST_CASE("spatial shard: even and uneven shards make the whole again, in the memory format they had", "[mesh]") {
  for (const uint32_t ranks : {2U, 3U, 4U})
    onRanks("rank that gathers shards", ranks, std::to_string(200 + ranks));
}

TEST_CASE("spatial shard: ranks agree on heights, or refuse alike", "[mesh]") {
  onRanks("rank that agrees on shards", 3);
}

TEST_CASE("spatial shard: a height is cut evenly, the first ranks taking what is left over", "[mesh]") {
  CHECK(SpatialShard::cut(8, 4) == std::vector<int64_t>{2, 2, 2, 2});
  CHECK(SpatialShard::cut(11, 4) == std::vector<int64_t>{3, 3, 3, 2});
  CHECK(SpatialShard::cut(4, 4) == std::vector<int64_t>{1, 1, 1, 1});
  CHECK(SpatialShard::cut(5, 1) == std::vector<int64_t>{5});
}

TEST_CASE("spatial shard: a height without a row for each rank is refused with those that have", "[mesh]") {
  CHECK(SpatialShard::checkHeight(24, 8, 3).ok());
  CHECK(SpatialShard::checkHeight(40, 8, 3).ok());
  CHECK(messageOf(SpatialShard::checkHeight(16, 8, 3)) ==
        "height 16: 3 ranks share it in multiples of 8; ask for a multiple of 8 from 24 on, or lower parallel.spatial");
  CHECK(SpatialShard::checkHeight(28, 8, 3).code() == absl::StatusCode::kInvalidArgument);
  CHECK(SpatialShard::checkHeight(0, 8, 2).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("halo: a rank that is alone has borders only, and communicates nothing", "[mesh]") {
  ProcessGroup alone;
  HaloExchange halo(alone);
  Draw random(7);
  for (int i = 0; i < 10; ++i) {
    const Case one = draw(random, 1);
    const at::Tensor padded = withHoles(one, 0, false);
    halo.fill(padded, one.dim, one.above, one.below);
    CHECK(padded.equal(expected(one, 0)));
  }
  CHECK(halo.bufferBytes() == 0);
}

}  // namespace
}  // namespace latentd::mesh
