#include "channel/transfer_plan.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "channel/strided_copy.h"
#include "runtime/base/dtype.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/draw.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

using absl::StatusCode;

// Position of element `i` (row-major) of a tensor of `shape`.
std::vector<int64_t> placeOf(int64_t i, const Shape& shape) {
  std::vector<int64_t> place(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    place[d] = i % shape[d];
    i /= shape[d];
  }
  return place;
}

int64_t offsetOf(const std::vector<int64_t>& place, const std::vector<int64_t>& strides) {
  int64_t offset = 0;
  for (size_t d = 0; d < place.size(); ++d)
    offset += place[d] * strides[d];
  return offset;
}

// A tensor in parts of any size on P ranks, wanted in even parts by C ranks.
struct PlanCase {
  ChannelSpec spec;
  Shape full;
  bool whole = false;
  std::optional<size_t> cut;  // the producers' dimension, unless whole
  std::vector<LeafSource> sources;
  std::vector<int64_t> begins;  // of each source along `cut`

  static PlanCase make(std::mt19937& random) {
    PlanCase made;
    made.whole = draw(random, 0, 9) == 0;
    made.spec.producer_ranks = static_cast<uint32_t>(draw(random, 1, 5));
    made.spec.consumer_ranks = static_cast<uint32_t>(draw(random, 1, 5));
    const int64_t dimensions = draw(random, 0, 4);
    for (int64_t d = 0; d < dimensions; ++d)
      made.full.push_back(draw(random, 0, 14) == 0 ? 0 : draw(random, 1, 6));
    // Also dimensions that the tensor lacks: then it is not cut.
    const auto dim = [&]() -> std::optional<int32_t> {
      if (draw(random, 0, 3) == 0) return std::nullopt;
      return static_cast<int32_t>(draw(random, -dimensions - 1, dimensions));
    };
    made.spec.producer_shard_dim = dim();
    made.spec.consumer_shard_dim = dim();
    if (!made.spec.producer_shard_dim) made.spec.producer_ranks = 1;  // replicated: one rank publishes
    if (!made.whole && made.spec.producer_ranks > 1) {
      made.cut = resolveDim(made.spec.producer_shard_dim, made.full.size());
    }
    made.drawSources(random);
    return made;
  }

  void drawSources(std::mt19937& random) {
    int64_t begin = 0;
    for (uint32_t p = 0; p < spec.producer_ranks; ++p) {
      Shape part = full;
      if (cut) part[*cut] = draw(random, 0, 5);
      begins.push_back(begin);
      begin += cut ? part[*cut] : 0;
      sources.push_back({part, whole});
    }
    if (cut) full[*cut] = begin;
  }

  // Of consumer rank c, in the full tensor.
  std::vector<Range> wanted(uint32_t c) const {
    std::vector<Range> ranges;
    const auto along = whole ? std::nullopt : resolveDim(spec.consumer_shard_dim, full.size());
    for (size_t d = 0; d < full.size(); ++d)
      ranges.push_back(d == along ? splitRange(full[d], spec.consumer_ranks, c) : Range{0, full[d]});
    return ranges;
  }

  std::string describe() const {
    std::string text = whole ? "whole" : "cut";
    text += ", dims " + std::to_string(spec.producer_shard_dim.value_or(99)) + " and " +
            std::to_string(spec.consumer_shard_dim.value_or(99)) + ", " + std::to_string(spec.consumer_ranks) +
            " consumers, sources";
    for (const LeafSource& source : sources) {
      text += " [";
      for (const int64_t extent : source.shape)
        text += " " + std::to_string(extent);
      text += " ]";
    }
    return text;
  }
};

// The element of the full tensor that lies in a source's element.
int64_t numberOf(const PlanCase& drawn, size_t source, std::vector<int64_t> place) {
  if (drawn.cut) place[*drawn.cut] += drawn.begins[source];
  return offsetOf(place, contiguousStrides(drawn.full));
}

// Carries a plan out one element at a time: every element of the target is written once, with the one that belongs
// there.
void checkElements(const PlanCase& drawn, const LeafPlan& plan, uint32_t c) {
  const std::vector<Range> wanted = drawn.wanted(c);
  Shape part;
  for (const Range& range : wanted)
    part.push_back(range.size());
  REQUIRE(plan.shape == part);
  REQUIRE(plannedElements(plan) == elementCount(part));
  const std::vector<int64_t> dense = contiguousStrides(part);
  std::vector<int64_t> target(static_cast<size_t>(elementCount(part)), -1);
  for (const CopyRegion& region : plan.regions) {
    REQUIRE(region.source_rank < drawn.sources.size());
    REQUIRE(region.target_strides == dense);
    REQUIRE(region.target_offset == offsetOf(region.target_begin, dense));
    const Shape& source = drawn.sources[region.source_rank].shape;
    REQUIRE(region.source_strides == contiguousStrides(source));
    const int64_t count = elementCount(region.extents);
    REQUIRE(count > 0);
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<int64_t> place = placeOf(i, region.extents);
      const int64_t from = region.source_offset + offsetOf(place, region.source_strides);
      const int64_t to = region.target_offset + offsetOf(place, region.target_strides);
      REQUIRE((from >= 0 && from < elementCount(source)));
      REQUIRE((to >= 0 && to < elementCount(part)));
      REQUIRE(target[static_cast<size_t>(to)] == -1);
      target[static_cast<size_t>(to)] = numberOf(drawn, region.source_rank, placeOf(from, source));
    }
  }
  for (int64_t i = 0; i < elementCount(part); ++i) {
    std::vector<int64_t> place = placeOf(i, part);
    for (size_t d = 0; d < place.size(); ++d)
      place[d] += wanted[d].begin;
    REQUIRE(target[static_cast<size_t>(i)] == offsetOf(place, contiguousStrides(drawn.full)));
  }
}

// Carries a plan out with the copy that host pools use, for elements of `bytes` bytes that tell their number.
void checkBytes(const PlanCase& drawn, const LeafPlan& plan, uint32_t c, size_t bytes) {
  const auto store = [&](std::vector<std::byte>& memory, int64_t index, int64_t number) {
    const int64_t tagged = number + 1;
    std::memcpy(memory.data() + static_cast<size_t>(index) * bytes, &tagged, bytes);
  };
  std::vector<std::byte> target(static_cast<size_t>(elementCount(plan.shape)) * bytes);
  for (const CopyRegion& region : plan.regions) {
    const Shape& shape = drawn.sources[region.source_rank].shape;
    std::vector<std::byte> source(static_cast<size_t>(elementCount(shape)) * bytes);
    for (int64_t i = 0; i < elementCount(shape); ++i)
      store(source, i, numberOf(drawn, region.source_rank, placeOf(i, shape)));
    const auto step = static_cast<int64_t>(bytes);
    copyStrided(target.data() + region.target_offset * step, region.target_strides,
                source.data() + region.source_offset * step, region.source_strides, region.extents, bytes);
  }
  std::vector<std::byte> expected(target.size());
  const std::vector<Range> wanted = drawn.wanted(c);
  for (int64_t i = 0; i < elementCount(plan.shape); ++i) {
    std::vector<int64_t> place = placeOf(i, plan.shape);
    for (size_t d = 0; d < place.size(); ++d)
      place[d] += wanted[d].begin;
    store(expected, i, offsetOf(place, contiguousStrides(drawn.full)));
  }
  REQUIRE(target == expected);
}

void plansAreTheOverlaps(uint32_t seed, int cases) {
  std::mt19937 random(seed);
  constexpr DType kDTypes[] = {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kInt64};
  for (int i = 0; i < cases; ++i) {
    const PlanCase drawn = PlanCase::make(random);
    for (uint32_t c = 0; c < drawn.spec.consumer_ranks; ++c) {
      CAPTURE(seed, i, c, drawn.describe());
      const auto plan = planLeaf(drawn.sources, drawn.spec, Rank(c));
      REQUIRE(plan.status().ToString() == "OK");
      checkElements(drawn, *plan, c);
      checkBytes(drawn, *plan, c, byteSize(kDTypes[random() % std::size(kDTypes)]));
    }
  }
}

LeafSource source(const Shape& shape, bool whole = false) { return {shape, whole}; }

ChannelSpec cutAlong(int32_t dim) {
  ChannelSpec spec;
  spec.producer_ranks = 2;
  spec.producer_shard_dim = dim;
  return spec;
}

}  // namespace

TEST_CASE("transfer plan: every rank gets its part, each element once and from where it lies [C7]",
          "[channel][property]") {
  plansAreTheOverlaps(20'261'129, 1500);
}

// LATENTD_TEST_SEED=N replays a run.
TEST_CASE("transfer plan: random parts, long", "[.][chaos]") { plansAreTheOverlaps(testSeed(), 100'000); }

TEST_CASE("transfer plan: a range is split as evenly as it can be, the longer parts first", "[channel]") {
  for (int64_t extent = 0; extent < 40; ++extent) {
    for (uint32_t parts = 1; parts < 10; ++parts) {
      CAPTURE(extent, parts);
      int64_t begin = 0;
      int64_t before = extent + 1;
      for (uint32_t i = 0; i < parts; ++i) {
        const Range range = splitRange(extent, parts, i);
        CHECK(range.begin == begin);
        CHECK(range.size() <= before);
        CHECK((range.size() == extent / parts || range.size() == extent / parts + 1));
        before = range.size();
        begin = range.end;
      }
      CHECK(begin == extent);
    }
  }
}

TEST_CASE("transfer plan: dimensions count from either end, and a tensor may lack them", "[channel]") {
  CHECK(resolveDim(std::nullopt, 3) == std::nullopt);
  CHECK(resolveDim(0, 3) == 0u);
  CHECK(resolveDim(2, 3) == 2u);
  CHECK(resolveDim(-1, 3) == 2u);
  CHECK(resolveDim(-3, 3) == 0u);
  CHECK(resolveDim(3, 3) == std::nullopt);
  CHECK(resolveDim(-4, 3) == std::nullopt);
  CHECK(resolveDim(0, 0) == std::nullopt);
}

TEST_CASE("transfer plan: parts that do not fit together are refused by rank", "[channel]") {
  const auto refused = [](const std::vector<LeafSource>& sources, const std::string& what) {
    const auto plan = planLeaf(sources, cutAlong(0), Rank(0));
    REQUIRE(plan.status().code() == StatusCode::kInvalidArgument);
    const std::string said = messageOf(plan.status());
    CAPTURE(said, what);
    CHECK(said.find("producer rank 1") != std::string::npos);
    CHECK(said.find(what) != std::string::npos);
  };
  refused({source({2, 3}), source({2, 4})}, "another extent in dimension 1");
  refused({source({2, 3}), source({2, 3, 1})}, "another number of dimensions");
  refused({source({2, 3}), source({2, 3}, true)}, "another choice of `whole`");
  refused({source({2}, true), source({3}, true)}, "another extent in dimension 0");
  // Only the dimension that is cut may differ.
  CHECK(planLeaf({source({2, 3}), source({5, 3})}, cutAlong(-2), Rank(0)).ok());
}

}  // namespace latentd::channel::testing
