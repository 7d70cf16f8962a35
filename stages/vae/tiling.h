#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace latentd::stages::vae {

// How images are cut into overlapping tiles, in latents. A value type.
struct Tiling {
  int64_t height = 0;  // of a tile; 0: images are not cut
  int64_t width = 0;
  int64_t overlap = 0;  // rows and columns that a tile shares with the next: at most half of either

  bool cuts(int64_t image_height, int64_t image_width) const {
    return height > 0 && (image_height > height || image_width > width);
  }
};

// Where one tile lies along one dimension of an image, in latents.
struct TileSpan {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t overlap_before = 0;  // entries that are also the tile's before; 0 for the first
  int64_t overlap_after = 0;   // entries that are also the next tile's; 0 for the last
};

// Tiles of `length` cover `image`, each but the first beginning `overlap` before the end of the one in front; the last
// ones end with the image.
std::vector<TileSpan> cutIntoTiles(int64_t image, int64_t length, int64_t overlap);

// How much of each of its pixels a tile gives to the image, [rows * scale, columns * scale, 1], float32: with those of
// all tiles it adds up to 1. `scale`: pixels for a latent.
//
// The weights are those of the reference, which blends each tile with the one above it and then with the one to its
// left, both blended before: ramps from one tile to the next, but where four tiles meet the upper two are blended with
// each other twice.
at::Tensor blendWeights(const TileSpan& rows, const TileSpan& columns, int64_t scale);

}  // namespace latentd::stages::vae
