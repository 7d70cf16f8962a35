#include "channel/token_grid.h"

#include <limits>
#include <random>
#include <vector>

#include "channel/limits.h"
#include "tests/channel/channel_rig.h"
#include "tests/channel/draw.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

TokenPart drawPart(std::mt19937& random, const TokenGrid& grid) {
  TokenPart part = TokenPart::whole(0, grid);
  part.cut = static_cast<TokenCut>(draw(random, 0, 2));
  if (part.cut == TokenCut::kNone) return part;
  const int64_t extent = part.cut == TokenCut::kRows ? grid.rows : grid.tokens();
  part.held.begin = draw(random, 0, extent);
  part.held.end = draw(random, part.held.begin, extent);
  return part;
}

// The tokens of a part one by one, as their numbers in the grid.
std::vector<int64_t> tokensOf(const TokenPart& part) {
  std::vector<int64_t> tokens;
  for (int64_t f = 0; f < part.grid.frames; ++f) {
    for (int64_t row = 0; row < part.grid.rows; ++row) {
      for (int64_t column = 0; column < part.grid.columns; ++column) {
        const int64_t token = (f * part.grid.rows + row) * part.grid.columns + column;
        const int64_t counted = part.cut == TokenCut::kRows ? row : token;
        if (counted >= part.held.begin && counted < part.held.end) tokens.push_back(token);
      }
    }
  }
  return tokens;
}

std::string describe(const TokenPart& part) {
  return toString(part.grid) + ", " + std::string(toString(part.cut)) + " " + std::to_string(part.held.begin) + " to " +
         std::to_string(part.held.end);
}

bool isOneRun(const std::vector<int64_t>& tokens) {
  return tokens.empty() || tokens.back() - tokens.front() + 1 == static_cast<int64_t>(tokens.size());
}

void runsAreWhatPartsShare(uint32_t seed, int cases) {
  std::mt19937 random(seed);
  for (int i = 0; i < cases; ++i) {
    const TokenGrid grid{draw(random, 1, 5), draw(random, 1, 6), draw(random, 1, 4)};
    const TokenPart source = drawPart(random, grid);
    const TokenPart target = drawPart(random, grid);
    CAPTURE(seed, i, describe(source), describe(target));
    REQUIRE(checkTokenPart(source, {source.tokens()}).ok());
    const std::vector<int64_t> from = tokensOf(source);
    const std::vector<int64_t> to = tokensOf(target);
    REQUIRE(source.tokens() == static_cast<int64_t>(from.size()));
    std::vector<int64_t> filled(to.size(), -1);
    const std::vector<TokenRuns> common = commonRuns(source, target);
    for (const TokenRuns& runs : common) {
      REQUIRE((runs.count > 0 && runs.tokens > 0));
      REQUIRE((runs.count > 1 || (runs.source_step == 0 && runs.target_step == 0)));
      for (int64_t run = 0; run < runs.count; ++run) {
        for (int64_t token = 0; token < runs.tokens; ++token) {
          const auto at = static_cast<size_t>(runs.source_begin + run * runs.source_step + token);
          const auto place = static_cast<size_t>(runs.target_begin + run * runs.target_step + token);
          REQUIRE(at < from.size());
          REQUIRE(place < filled.size());
          REQUIRE(filled[place] == -1);
          filled[place] = from[at];
        }
      }
    }
    // What the source lacks stays empty; everything else is the token that belongs there.
    for (size_t place = 0; place < to.size(); ++place) {
      const bool shared = std::find(from.begin(), from.end(), to[place]) != from.end();
      REQUIRE(filled[place] == (shared ? to[place] : -1));
    }
    REQUIRE(common.size() <= (isOneRun(from) && isOneRun(to) ? 1 : 3));
  }
}

TokenPart part(const TokenGrid& grid, TokenCut cut, Range held) { return {0, grid, cut, held}; }

}  // namespace

TEST_CASE("token grid: two parts share exactly what a token by token look finds, in at most three stacks [C7][C19]",
          "[channel][property]") {
  runsAreWhatPartsShare(20'261'129, 20'000);
}

// LATENTD_TEST_SEED=N replays a run.
TEST_CASE("token grid: random parts, long", "[.][chaos]") { runsAreWhatPartsShare(testSeed(), 1'000'000); }

TEST_CASE("token grid: a run of tokens meets rows in a part of a frame, whole frames and a part of a frame",
          "[channel]") {
  const TokenGrid grid{4, 6, 10};
  // From the middle of row 1 of frame 0 into row 3 of frame 3; rows 1 to 4.
  const auto common = commonRuns(part(grid, TokenCut::kTokens, {15, 213}), part(grid, TokenCut::kRows, {1, 5}));
  REQUIRE(common.size() == 3);
  CHECK(common[0] == TokenRuns{1, 35, 0, 0, 5, 0});
  CHECK(common[1] == TokenRuns{2, 40, 55, 60, 40, 40});
  CHECK(common[2] == TokenRuns{1, 23, 175, 0, 120, 0});
  // A run that begins before the rows of its first frame has them whole: one stack.
  CHECK(commonRuns(part(grid, TokenCut::kTokens, {3, 240}), part(grid, TokenCut::kRows, {1, 5})) ==
        std::vector<TokenRuns>{{4, 40, 7, 60, 0, 40}});
  // Between two frames' rows there is nothing.
  CHECK(commonRuns(part(grid, TokenCut::kTokens, {50, 70}), part(grid, TokenCut::kRows, {1, 5})).empty());
  // All rows are one run.
  CHECK(commonRuns(part(grid, TokenCut::kTokens, {15, 213}), part(grid, TokenCut::kRows, {0, 6})) ==
        std::vector<TokenRuns>{{1, 198, 0, 0, 15, 0}});
}

TEST_CASE("token grid: shares cover a grid once, equal ones of tokens and even ones of rows", "[channel]") {
  for (const TokenGrid& grid : {TokenGrid{1, 1, 1}, TokenGrid{2, 3, 5}, TokenGrid{3, 7, 2}}) {
    for (uint32_t ranks = 1; ranks <= 9; ++ranks) {
      for (const TokenCut cut : {TokenCut::kTokens, TokenCut::kRows}) {
        CAPTURE(toString(grid), ranks, toString(cut));
        const int64_t extent = cut == TokenCut::kRows ? grid.rows : grid.tokens();
        const int64_t longest = (extent + ranks - 1) / ranks;
        int64_t begin = 0;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          const TokenPart share = shareOf(2, grid, cut, ranks, rank);
          CHECK(checkTokenPart(share, {1, 1, share.tokens(), 8}).ok());
          CHECK(share.held.begin == begin);
          CHECK(share.held.size() <= longest);
          // Padded to equal shards, a rank holds [rank * longest, ...).
          if (cut == TokenCut::kTokens) CHECK(begin == std::min<int64_t>(rank * longest, extent));
          if (cut == TokenCut::kRows) CHECK(share.held.size() >= extent / ranks);
          begin = share.held.end;
        }
        CHECK(begin == extent);
      }
      CHECK(shareOf(2, grid, TokenCut::kNone, ranks, ranks - 1) == TokenPart::whole(2, grid));
    }
  }
}

TEST_CASE("token grid: a part that is out of its grid or does not fit its tensor is refused by field [C18]",
          "[channel]") {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const TokenGrid grid{2, 3, 4};
  const std::pair<TokenPart, const char*> wrong[] = {
      {{2, grid, TokenCut::kNone, {0, 24}}, "dim is 2"},
      {{1, {0, 3, 4}, TokenCut::kNone, {0, 0}}, "the grid is 0 x 3 x 4"},
      {{1, {2, -3, -4}, TokenCut::kNone, {0, 24}}, "the grid is 2 x -3 x -4"},
      {{1, {kMost, kMost, 2}, TokenCut::kNone, {0, 24}}, "tokens together"},
      {{1, grid, static_cast<TokenCut>(3), {0, 24}}, "cut is 3"},
      {{1, grid, TokenCut::kNone, {0, 23}}, "[0, 23) of 24 tokens"},
      {{1, grid, TokenCut::kTokens, {-1, 23}}, "[-1, 23) of 24 tokens"},
      {{1, grid, TokenCut::kTokens, {1, 25}}, "[1, 25) of 24 tokens"},
      {{1, grid, TokenCut::kTokens, {24, 0}}, "[24, 0) of 24 tokens"},
      {{1, grid, TokenCut::kTokens, {std::numeric_limits<int64_t>::min(), kMost}}, "of 24 tokens"},
      {{1, grid, TokenCut::kRows, {0, 4}}, "[0, 4) of 3 rows"},
      {{1, grid, TokenCut::kRows, {0, 2}}, "are 16 tokens, dimension 1 of the tensor has 24"},
  };
  for (const auto& [refused, what] : wrong) {
    const Status status = checkTokenPart(refused, {1, 24});
    CAPTURE(status.ToString(), what);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(messageOf(status).find(what) != std::string::npos);
  }
  CHECK(checkTokenPart({1, grid, TokenCut::kRows, {0, 3}}, {1, 24}).ok());
  const std::vector<int64_t> deep(kDimensionsMax, 1);
  CHECK_FALSE(checkTokenPart(TokenPart::whole(0, {1, 1, 1}), deep).ok());
}

}  // namespace latentd::channel::testing
