#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "channel/range.h"
#include "runtime/base/status.h"
#include "runtime/base/token_cut.h"

// Videos in token layout: one dimension of a tensor runs over a grid of frames, rows and columns, in that order. Ranks
// hold runs of tokens, or runs of rows of every frame; what two ranks have in common is a few stacks of runs.
namespace latentd::channel {

// Token (frame * rows + row) * columns + column stands for that place. A value type.
struct TokenGrid {
  int64_t frames = 0;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t tokens() const { return frames * rows * columns; }
  // Of what a cut counts: rows, or tokens.
  int64_t extent(TokenCut cut) const { return cut == TokenCut::kRows ? rows : tokens(); }
  friend bool operator==(const TokenGrid&, const TokenGrid&) = default;
};
std::string toString(const TokenGrid& grid);  // "21 x 30 x 52"

// The tokens that one tensor holds: densely, in the grid's order, along its dimension `dim`. A value type.
struct TokenPart {
  uint32_t dim = 0;
  TokenGrid grid;  // of the whole video
  TokenCut cut = TokenCut::kNone;
  Range held;  // of rows where cut is kRows, else of tokens

  static TokenPart whole(uint32_t dim, const TokenGrid& grid) {
    return {dim, grid, TokenCut::kNone, {0, grid.tokens()}};
  }
  int64_t tokens() const { return cut == TokenCut::kRows ? grid.frames * held.size() * grid.columns : held.size(); }
  friend bool operator==(const TokenPart&, const TokenPart&) = default;
};

// INVALID_ARGUMENT naming the field and its bound unless the part lies in its grid, within channel/limits.h, and a
// tensor of `shape` holds it. Nothing below may be called with a part that was not checked.
Status checkTokenPart(const TokenPart& part, const std::vector<int64_t>& shape);

// What rank `rank` of `ranks` holds where a grid is cut: equal shares of tokens, the last ones shorter (equalShare), or
// rows as even as they can be (splitRange).
TokenPart shareOf(uint32_t dim, const TokenGrid& grid, TokenCut cut, uint32_t ranks, uint32_t rank);

// `count` runs of `tokens` tokens, equally spaced in the dimension of each side.
struct TokenRuns {
  int64_t count = 1;
  int64_t tokens = 0;
  int64_t source_begin = 0;
  int64_t source_step = 0;  // 0 for a single run
  int64_t target_begin = 0;
  int64_t target_step = 0;
  friend bool operator==(const TokenRuns&, const TokenRuns&) = default;
};

// The tokens that both parts of one grid hold, each once: a single run where both parts are one, at most three stacks
// otherwise, for a run of tokens begins and ends within a frame.
std::vector<TokenRuns> commonRuns(const TokenPart& source, const TokenPart& target);

}  // namespace latentd::channel
