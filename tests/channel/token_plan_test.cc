#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "channel/strided_copy.h"
#include "channel/transfer_plan.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/draw.h"
#include "tests/channel/tensors.h"
#include "tests/support/catch.h"

// Plans of leaves in token layout, carried out with the copy that host pools use.
namespace latentd::channel::testing {
namespace {

using absl::StatusCode;

// A tensor [outer, tokens, inner] in parts on P ranks, wanted in shares by C ranks. Every element is the number of its
// place in the whole tensor.
struct TokenCase {
  ChannelSpec spec;
  TokenGrid grid;
  int64_t outer = 1;
  int64_t inner = 1;
  bool whole = false;
  std::vector<LeafSource> sources;

  static TokenCase make(std::mt19937& random) {
    TokenCase made;
    made.grid = {draw(random, 1, 4), draw(random, 1, 6), draw(random, 1, 4)};
    made.outer = draw(random, 0, 9) == 0 ? 0 : draw(random, 1, 2);
    made.inner = draw(random, 0, 9) == 0 ? 0 : draw(random, 1, 3);
    made.whole = draw(random, 0, 9) == 0;
    made.spec.producer_tokens = static_cast<TokenCut>(draw(random, 0, 2));
    made.spec.consumer_tokens = static_cast<TokenCut>(draw(random, 0, 2));
    made.spec.consumer_ranks = static_cast<uint32_t>(draw(random, 1, 5));
    if (made.spec.producer_tokens != TokenCut::kNone) {
      made.spec.producer_ranks = static_cast<uint32_t>(draw(random, 1, 5));
    }
    made.drawSources(random);
    return made;
  }

  // Equal shares, or any sizes; ranks in between may hold nothing.
  void drawSources(std::mt19937& random) {
    const TokenCut cut = whole ? TokenCut::kNone : spec.producer_tokens;
    const bool equal = draw(random, 0, 1) == 0;
    int64_t begin = 0;
    for (uint32_t p = 0; p < spec.producer_ranks; ++p) {
      TokenPart part = shareOf(1, grid, cut, spec.producer_ranks, p);
      if (cut != TokenCut::kNone && !equal) {
        const int64_t extent = cut == TokenCut::kRows ? grid.rows : grid.tokens();
        const bool last = p + 1 == spec.producer_ranks;
        part.held = {begin, last ? extent : draw(random, begin, std::min(extent, begin + 2 * extent / 3))};
        begin = part.held.end;
      }
      sources.push_back({{outer, part.tokens(), inner}, whole, part});
    }
  }

  int64_t numberAt(int64_t o, int64_t token, int64_t i) const { return (o * grid.tokens() + token) * inner + i; }

  // Numbers of the elements of a part, token by token.
  std::vector<int64_t> elementsOf(const TokenPart& part) const {
    std::vector<int64_t> elements;
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t token = 0; token < grid.tokens(); ++token) {
        const int64_t counted = part.cut == TokenCut::kRows ? token / grid.columns % grid.rows : token;
        if (counted < part.held.begin || counted >= part.held.end) continue;
        for (int64_t i = 0; i < inner; ++i)
          elements.push_back(numberAt(o, token, i));
      }
    }
    return elements;
  }

  TokenPart wanted(uint32_t c) const {
    return shareOf(1, grid, whole ? TokenCut::kNone : spec.consumer_tokens, spec.consumer_ranks, c);
  }

  std::string describe() const {
    std::string text = std::to_string(outer) + " x (" + toString(grid) + ") x " + std::to_string(inner);
    text += whole ? ", whole, from " : ", from ";
    for (const LeafSource& source : sources) {
      text += std::string(toString(source.tokens->cut)) + " " + std::to_string(source.tokens->held.begin) + " to " +
              std::to_string(source.tokens->held.end) + ", ";
    }
    return text + "to " + std::to_string(spec.consumer_ranks) + " by " + std::string(toString(spec.consumer_tokens));
  }
};

// Into a target of these strides; what the plan does not write stays -1.
std::vector<int64_t> carryOut(const TokenCase& drawn, LeafPlan plan, const std::vector<int64_t>& strides,
                              size_t elements) {
  std::vector<int64_t> target(elements, -1);
  for (CopyRegion& region : plan.regions) {
    region.aimAt(strides);
    const std::vector<int64_t> source = drawn.elementsOf(*drawn.sources[region.source_rank].tokens);
    copyStrided(reinterpret_cast<std::byte*>(target.data() + region.target_offset), region.target_strides,
                reinterpret_cast<const std::byte*>(source.data() + region.source_offset), region.source_strides,
                region.extents, sizeof(int64_t));
  }
  return target;
}

void checkPlan(const TokenCase& drawn, const LeafPlan& plan, uint32_t c) {
  const TokenPart wanted = drawn.wanted(c);
  REQUIRE(plan.tokens == wanted);
  REQUIRE(plan.shape == Shape{drawn.outer, wanted.tokens(), drawn.inner});
  const std::vector<int64_t> expected = drawn.elementsOf(wanted);
  REQUIRE(plannedElements(plan) == static_cast<int64_t>(expected.size()));
  std::vector<size_t> copies(drawn.sources.size(), 0);
  for (const CopyRegion& region : plan.regions) {
    REQUIRE(++copies[region.source_rank] <= 3);
    REQUIRE(elementCount(region.extents) > 0);
  }
  REQUIRE(carryOut(drawn, plan, contiguousStrides(plan.shape), expected.size()) == expected);
  // Rows with a gap behind them, as an allocator may choose.
  const int64_t pitch = drawn.inner + 2;
  const Shape padded{plan.shape[0], plan.shape[1], pitch};
  const std::vector<int64_t> target =
      carryOut(drawn, plan, contiguousStrides(padded), static_cast<size_t>(elementCount(padded)));
  std::vector<int64_t> gathered;
  for (size_t i = 0; i < target.size(); ++i) {
    const bool gap = static_cast<int64_t>(i) % pitch >= drawn.inner;
    REQUIRE((!gap || target[i] == -1));
    if (!gap) gathered.push_back(target[i]);
  }
  REQUIRE(gathered == expected);
}

void plansReadWhatOverlaps(uint32_t seed, int cases) {
  std::mt19937 random(seed);
  for (int i = 0; i < cases; ++i) {
    const TokenCase drawn = TokenCase::make(random);
    for (uint32_t c = 0; c < drawn.spec.consumer_ranks; ++c) {
      CAPTURE(seed, i, c, drawn.describe());
      const auto plan = planLeaf(drawn.sources, drawn.spec, Rank(c));
      REQUIRE(plan.status().ToString() == "OK");
      checkPlan(drawn, *plan, c);
    }
  }
}

LeafSource held(const TokenGrid& grid, TokenCut cut, Range range, int64_t inner = 2) {
  const TokenPart part{1, grid, cut, range};
  return {{1, part.tokens(), inner}, false, part};
}

}  // namespace

TEST_CASE("token plan: every rank gets its share of the grid, each element once and from where it lies [C7][C19]",
          "[channel][property]") {
  plansReadWhatOverlaps(20'261'129, 3000);
}

// LATENTD_TEST_SEED=N replays a run.
TEST_CASE("token plan: random grids, long", "[.][chaos]") { plansReadWhatOverlaps(testSeed(), 200'000); }

TEST_CASE("token plan: runs of equal distance are one copy with a dimension more [C19]", "[channel]") {
  ChannelSpec spec;
  spec.producer_ranks = 2;
  spec.consumer_ranks = 2;
  spec.producer_tokens = TokenCut::kTokens;
  spec.consumer_tokens = TokenCut::kRows;
  const TokenGrid grid{4, 6, 10};
  const std::vector<LeafSource> sources{held(grid, TokenCut::kTokens, {0, 120}),
                                        held(grid, TokenCut::kTokens, {120, 240})};
  const auto plan = planLeaf(sources, spec, Rank(1));
  REQUIRE(plan.ok());
  CHECK(plan->shape == Shape{1, 120, 2});
  REQUIRE(plan->regions.size() == 2);
  for (const CopyRegion& region : plan->regions) {
    CHECK(region.extents == Shape{2, 1, 30, 2});
    CHECK(region.source_offset == 60);
    CHECK(region.source_strides[0] == 120);
    CHECK(region.target_strides[0] == 60);
    CHECK(region.target_offset == 120 * region.source_rank);
  }
  CHECK_FALSE(plan->isOnePiece());
}

TEST_CASE("token plan: parts that are not one grid in the order of ranks are refused by rank [C18]", "[channel]") {
  ChannelSpec spec;
  spec.producer_ranks = 2;
  spec.producer_tokens = TokenCut::kTokens;
  const TokenGrid grid{2, 3, 4};
  const auto refused = [&](const std::vector<LeafSource>& sources, const std::string& what) {
    const auto plan = planLeaf(sources, spec, Rank(0));
    REQUIRE(plan.status().code() == StatusCode::kInvalidArgument);
    const std::string said = messageOf(plan.status());
    CAPTURE(said, what);
    CHECK(said.find(what) != std::string::npos);
  };
  const LeafSource first = held(grid, TokenCut::kTokens, {0, 10});
  const LeafSource second = held(grid, TokenCut::kTokens, {10, 24});
  CHECK(planLeaf({first, second}, spec, Rank(0)).ok());
  CHECK(planLeaf({first, held(grid, TokenCut::kTokens, {3, 3}), second}, spec, Rank(0)).ok());  // nothing, anywhere
  refused({first, {{1, 14, 2}}}, "producer rank 1 published another choice of token layout");
  refused({first, held({2, 4, 3}, TokenCut::kTokens, {10, 24})}, "producer rank 1 published tokens of another grid");
  refused({first, held(grid, TokenCut::kRows, {1, 3})}, "producer rank 1 published a token grid cut along rows");
  refused({first, held(grid, TokenCut::kNone, {0, 24})}, "producer rank 1 published a token grid cut along none");
  refused({first, held(grid, TokenCut::kTokens, {11, 24})}, "producer rank 1 holds tokens from 11");
  refused({first, held(grid, TokenCut::kTokens, {9, 24})}, "producer rank 1 holds tokens from 9");
  refused({second, first}, "producer rank 0 holds tokens from 10");
  refused({first, held(grid, TokenCut::kTokens, {10, 23})}, "hold 23 of the 24 tokens");
  refused({first, held(grid, TokenCut::kTokens, {10, 24}, 3)}, "another extent in dimension 2");
  LeafSource turned = second;
  turned.tokens->dim = 0;
  refused({first, turned}, "in dimension 0, not");
}

}  // namespace latentd::channel::testing
