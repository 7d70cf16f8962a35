#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "runtime/base/status.h"
#include "runtime/base/token_cut.h"
#include "stages/stage.h"

// Videos in token layout, as stages exchange them where the ranks of a group hold parts of one: a MethodSpec names such
// outputs and inputs and says how they are cut, and the edge brings every consumer rank its own part.
namespace latentd::stages {

// How many places something has along frames, rows and columns.
struct VideoExtents {
  int64_t frames = 1;
  int64_t rows = 1;
  int64_t columns = 1;

  int64_t count() const { return frames * rows * columns; }
  friend bool operator==(const VideoExtents&, const VideoExtents&) = default;
};

// The tokens of a video that this rank holds. Token (frame * rows + row) * columns + column of the grid stands for the
// patch at that place. A value type.
struct TokenVideo {
  at::Tensor tokens;   // [batch, tokens held, channels, values of a patch]; a rank may hold none
  VideoExtents grid;   // patches of the whole video
  VideoExtents patch;  // values of a patch, in the order frame, row, column
  TokenCut cut = TokenCut::kNone;
  int64_t begin = 0;  // first row held where cut is kRows, else first token

  // Tokens of what `begin` counts.
  int64_t unit() const { return cut == TokenCut::kRows ? grid.frames * grid.columns : 1; }
};

// As the entry of an outputs' dictionary, and back. INVALID_ARGUMENT, naming `key`, for anything else or for tokens
// that are no part of the grid.
TensorTree toTree(const TokenVideo& video);
StatusOr<TokenVideo> tokenVideoOf(const TensorTree& entry, std::string_view key);
// Whether an input came in token layout.
bool isTokenVideo(const TensorTree& entry);

// The entry without what differs from rank to rank, grid, cut and begin, which the data plane carries beside the
// tensor; and with it again, as it is on this rank.
TensorTree withoutPart(const TensorTree& entry);
TensorTree withPart(TensorTree entry, const VideoExtents& grid, TokenCut cut, int64_t begin);

// [B, C, T, H, W], multiples of the patch along T, H and W: all of it in tokens.
TokenVideo patchify(const at::Tensor& video, const VideoExtents& patch);
// [B, C, T, H, W] of all rows that are held. Not of a video that is cut along tokens: c10::Error.
at::Tensor unpatchify(const TokenVideo& video);

}  // namespace latentd::stages
