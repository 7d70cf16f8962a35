#include "channel/token_grid.h"

#include <algorithm>

#include "channel/limits.h"

namespace latentd::channel {
namespace {

Status refuse(const std::string& what) { return makeStatus(absl::StatusCode::kInvalidArgument, "token part: " + what); }

std::string text(const Range& range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

// So that no product of extents overflows.
bool isBounded(const TokenGrid& grid) {
  auto tokens = static_cast<int64_t>(kTensorBytesMax);
  for (const int64_t extent : {grid.frames, grid.rows, grid.columns}) {
    if (extent < 1 || extent > tokens) return false;
    tokens /= extent;
  }
  return true;
}

// Rows of one frame are one run; so are all rows of all frames.
bool isOneRun(const TokenPart& part) {
  return part.cut != TokenCut::kRows || part.grid.frames == 1 || part.held.size() == part.grid.rows;
}

// Of a part that is one run.
Range runOf(const TokenPart& part) {
  if (part.cut != TokenCut::kRows) return part.held;
  const int64_t begin = part.held.begin * part.grid.columns;
  return {begin, begin + part.tokens()};
}

// Tokens of each frame, counted from its first.
Range inFrame(const TokenPart& rows) {
  return {rows.held.begin * rows.grid.columns, rows.held.end * rows.grid.columns};
}

// Token x of frame f lies at origin + f * step + x of a part's dimension.
struct Placement {
  int64_t origin = 0;
  int64_t step = 0;
};

Placement placementOf(const TokenPart& part) {
  const int64_t columns = part.grid.columns;
  if (part.cut == TokenCut::kRows) return {-part.held.begin * columns, part.held.size() * columns};
  return {-part.held.begin, part.grid.rows * columns};
}

// The same tokens of some successive frames.
struct Block {
  Range frames;
  Range tokens;  // counted from a frame's first
};

// What of `tokens` of every frame lies in `run`: the frames that are in it as a whole, and what it has of the frame
// before and of the one after.
std::vector<Block> blocksOf(const Range& run, const Range& tokens, const TokenGrid& grid) {
  const int64_t frame = grid.rows * grid.columns;
  const int64_t begin = (std::max<int64_t>(run.begin - tokens.begin, 0) + frame - 1) / frame;
  const int64_t end = run.end < tokens.end ? 0 : (run.end - tokens.end) / frame + 1;
  const Range complete{begin, std::max(begin, end)};
  std::vector<Block> blocks;
  const auto addPartOf = [&](int64_t f) {
    const Range part = intersect({run.begin - f * frame, run.end - f * frame}, tokens);
    if (part.size() > 0) blocks.push_back({{f, f + 1}, part});
  };
  const int64_t first = run.begin / frame;
  const int64_t last = (run.end - 1) / frame;
  if (first < complete.begin) addPartOf(first);
  if (complete.size() > 0) blocks.push_back({complete, tokens});
  if (last >= complete.end) addPartOf(last);
  return blocks;
}

TokenRuns place(const Block& block, const Placement& source, const Placement& target) {
  const auto at = [&](const Placement& side) {
    return side.origin + block.frames.begin * side.step + block.tokens.begin;
  };
  TokenRuns runs{block.frames.size(), block.tokens.size(), at(source), 0, at(target), 0};
  if (runs.count > 1) {
    runs.source_step = source.step;
    runs.target_step = target.step;
  }
  return runs;
}

}  // namespace

std::string toString(const TokenGrid& grid) {
  return std::to_string(grid.frames) + " x " + std::to_string(grid.rows) + " x " + std::to_string(grid.columns);
}

Status checkTokenPart(const TokenPart& part, const std::vector<int64_t>& shape) {
  // A stack of runs has a dimension more than its tensor.
  if (shape.size() >= kDimensionsMax) {
    return refuse("the tensor has " + std::to_string(shape.size()) + " dimensions, at most " +
                  std::to_string(kDimensionsMax - 1));
  }
  if (part.dim >= shape.size()) {
    return refuse("dim is " + std::to_string(part.dim) + " of a tensor of " + std::to_string(shape.size()) +
                  " dimensions");
  }
  if (!isBounded(part.grid)) {
    return refuse("the grid is " + toString(part.grid) + "; frames, rows and columns are 1 or more and at most " +
                  std::to_string(kTensorBytesMax) + " tokens together");
  }
  if (part.cut > kTokenCutMax)
    return refuse("cut is " + std::to_string(static_cast<int>(part.cut)) + ", which is none");
  const int64_t extent = part.grid.extent(part.cut);
  const bool inside = part.held.begin >= 0 && part.held.begin <= part.held.end && part.held.end <= extent;
  if (!inside || (part.cut == TokenCut::kNone && part.held.size() != extent)) {
    return refuse("it holds " + text(part.held) + " of " + std::to_string(extent) +
                  (part.cut == TokenCut::kRows ? " rows" : " tokens") + ", cut along " +
                  std::string(toString(part.cut)));
  }
  if (part.tokens() == shape[part.dim]) return absl::OkStatus();
  return refuse(text(part.held) + (part.cut == TokenCut::kRows ? " rows" : " tokens") + " of a grid of " +
                toString(part.grid) + " are " + std::to_string(part.tokens()) + " tokens, dimension " +
                std::to_string(part.dim) + " of the tensor has " + std::to_string(shape[part.dim]));
}

TokenPart shareOf(uint32_t dim, const TokenGrid& grid, TokenCut cut, uint32_t ranks, uint32_t rank) {
  switch (cut) {
    case TokenCut::kNone:
      break;
    case TokenCut::kTokens:
      return {dim, grid, cut, equalShare(grid.tokens(), ranks, rank)};
    case TokenCut::kRows:
      return {dim, grid, cut, splitRange(grid.rows, ranks, rank)};
  }
  return TokenPart::whole(dim, grid);
}

std::vector<TokenRuns> commonRuns(const TokenPart& source, const TokenPart& target) {
  if (source.tokens() == 0 || target.tokens() == 0) return {};
  const bool source_is_run = isOneRun(source);
  const bool target_is_run = isOneRun(target);
  if (source_is_run && target_is_run) {
    const Range from = runOf(source);
    const Range to = runOf(target);
    const Range common = intersect(from, to);
    if (common.size() == 0) return {};
    return {{1, common.size(), common.begin - from.begin, 0, common.begin - to.begin, 0}};
  }
  std::vector<Block> blocks;
  if (source_is_run) {
    blocks = blocksOf(runOf(source), inFrame(target), source.grid);
  } else if (target_is_run) {
    blocks = blocksOf(runOf(target), inFrame(source), source.grid);
  } else if (const Range tokens = intersect(inFrame(source), inFrame(target)); tokens.size() > 0) {
    blocks.push_back({{0, source.grid.frames}, tokens});
  }
  std::vector<TokenRuns> runs;
  for (const Block& block : blocks)
    runs.push_back(place(block, placementOf(source), placementOf(target)));
  return runs;
}

}  // namespace latentd::channel
