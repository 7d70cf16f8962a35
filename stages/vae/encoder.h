#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stages/vae/blocks.h"
#include "stages/vae/resample.h"
#include "stages/vae/vae_config.h"

namespace latentd::stages::vae {

// One resolution of the encoder: its layers, then the way down to the next resolution.
class DownBlock {
 public:
  // Wan 2.1 numbers the layers of all blocks in one list; `next` is the number of this block's first layer and is
  // advanced past its last one.
  static DownBlock load(const LayerLoader& loader, const VaeConfig& config, size_t index, size_t& next);
  at::Tensor forward(at::Tensor input, FeatureCache& cache) const;

 private:
  std::vector<Layer> layers_;
  std::optional<Downsample> downsample_;  // absent in the last block
  std::optional<AverageDown> shortcut_;   // Wan 2.2
};

// Patched pixels to the moments of the latents (means, then log variances), chunk by chunk, [T, H, W, C] both.
// Owner: AutoencoderKLWan. Thread: any, immutable. Failure: may throw c10::Error.
class Encoder {
 public:
  static Encoder load(const LayerLoader& loader, const VaeConfig& config);

  // One chunk: a single frame in the cache's first chunk, four later.
  at::Tensor forward(const at::Tensor& frames, FeatureCache& cache) const;

 private:
  CausalConv3d conv_in_;
  std::vector<DownBlock> down_blocks_;
  MidBlock mid_block_;
  Head head_;
};

}  // namespace latentd::stages::vae
