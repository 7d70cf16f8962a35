#include "stages/vae/tiling.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "runtime/base/check.h"

namespace latentd::stages::vae {
namespace {

// 0 to 1 in the overlap with the tile before, 1 in the middle, 1 to 0 in the overlap with the next one; in these two
// the rising share to the `power`, the falling one what is left of it.
at::Tensor ramp(const TileSpan& span, int64_t scale, double power) {
  at::Tensor share = at::ones({span.length * scale}, at::kDouble);
  const auto rising = [&](int64_t latents) {
    const int64_t pixels = latents * scale;
    return at::arange(pixels, at::kDouble).div_(static_cast<double>(pixels)).pow_(power);
  };
  if (span.overlap_before > 0) share.narrow(0, 0, span.overlap_before * scale).copy_(rising(span.overlap_before));
  if (span.overlap_after > 0) {
    const int64_t pixels = span.overlap_after * scale;
    share.narrow(0, span.length * scale - pixels, pixels).sub_(rising(span.overlap_after));
  }
  return share;
}

}  // namespace

std::vector<TileSpan> cutIntoTiles(int64_t image, int64_t length, int64_t overlap) {
  LATENTD_CHECK(image > 0 && length > 0 && overlap >= 0 && 2 * overlap <= length,
                "a tile overlaps with one tile on each side at most");
  const int64_t stride = length - overlap;
  std::vector<TileSpan> spans;
  for (int64_t begin = 0; begin < image; begin += stride)
    spans.push_back({.begin = begin, .length = std::min(length, image - begin)});
  for (size_t i = 1; i < spans.size(); ++i) {
    // The last tile may be lower than the overlap.
    spans[i].overlap_before = std::min(overlap, spans[i].length);
    spans[i - 1].overlap_after = spans[i].overlap_before;
  }
  return spans;
}

at::Tensor blendWeights(const TileSpan& rows, const TileSpan& columns, int64_t scale) {
  const at::Tensor down = ramp(rows, scale, 1).unsqueeze(1);
  at::Tensor weights = down.mul(ramp(columns, scale, 1));
  // The rows that the tiles below are blended into.
  const int64_t shared = rows.overlap_after * scale;
  const int64_t begin = rows.length * scale - shared;
  weights.narrow(0, begin, shared).copy_(down.narrow(0, begin, shared).mul(ramp(columns, scale, 2)));
  return weights.unsqueeze(2).to(at::kFloat);
}

}  // namespace latentd::stages::vae
