#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "mesh/spatial_shard.h"
#include "stages/vae/causal_conv3d.h"

namespace latentd::stages::vae {

// Changes of resolution. Immutable after load(), owned by a block, usable from any thread; may throw c10::Error.

// Doubles height and width (nearest neighbour, then a 3x3 convolution), and first, if temporal, the frames.
class Upsample {
 public:
  static Upsample load(const LayerLoader& loader, int64_t in, int64_t out, bool temporal);
  at::Tensor forward(at::Tensor input, FeatureCache& cache) const;

 private:
  at::Tensor doubleFrames(const at::Tensor& input, FeatureCache& cache) const;
  at::Tensor convolveSmall(at::Tensor input, const mesh::SpatialShard* shard) const;

  int64_t out_ = 0;
  // Of the doubled image a 3x3 window sees only 2x2 different pixels. Each of the four places of an output pixel in its
  // input pixel (even or odd row, even or odd column) thus has a 2x2 kernel of sums of the 3x3 one's weights; together
  // they are one convolution with 4 * out channels over the small image: 16 multiplications instead of 36, and no
  // doubled image is made.
  Convolution places_;
  std::optional<CausalConv3d> time_conv_;
};

// Halves height and width (a 3x3 convolution of stride 2, padded at the right and bottom), and then, if temporal, the
// frames of every chunk but the first.
class Downsample {
 public:
  static Downsample load(const LayerLoader& loader, int64_t channels, bool temporal);
  at::Tensor forward(at::Tensor input, FeatureCache& cache) const;

 private:
  Convolution convolution_;
  std::optional<CausalConv3d> time_conv_;
};

// Wan 2.2's shortcuts around a whole block, without parameters.

// Averages the pixels that become one; frames are padded with zeros in front to a multiple of the factor.
struct AverageDown {
  int64_t out = 0;
  int64_t time_factor = 1;
  int64_t space_factor = 1;
  at::Tensor forward(const at::Tensor& input) const;
};

// Repeats channels and spreads them over the new pixels. The first chunk yields its last frame of each group only.
struct DuplicateUp {
  int64_t out = 0;
  int64_t time_factor = 1;
  int64_t space_factor = 2;
  at::Tensor forward(const at::Tensor& input, bool first_chunk) const;
};

// [T, H, W, C] to [T, H/p, W/p, C*p*p] and back; within a patch the order is channel, column, row.
at::Tensor patchify(const at::Tensor& frames, int64_t patch_size);
at::Tensor unpatchify(const at::Tensor& frames, int64_t patch_size);

}  // namespace latentd::stages::vae
