#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stages/vae/blocks.h"
#include "stages/vae/resample.h"
#include "stages/vae/vae_config.h"

namespace latentd::stages::vae {

// One resolution of the decoder: residual blocks, then the way up to the next resolution.
class UpBlock {
 public:
  static UpBlock load(const LayerLoader& loader, const VaeConfig& config, size_t index);
  at::Tensor forward(at::Tensor input, FeatureCache& cache) const;

 private:
  std::vector<ResidualBlock> layers_;
  std::optional<Upsample> upsample_;     // absent in the last block
  std::optional<DuplicateUp> shortcut_;  // Wan 2.2, where there is an upsample_
};

// Latent frames to patched pixels, chunk by chunk, [T, H, W, C] both. The parts are public, so that each can be held
// against its reference; forward() is all of them in order.
// Owner: AutoencoderKLWan. Thread: any, immutable. Failure: may throw c10::Error.
class Decoder {
 public:
  static Decoder load(const LayerLoader& loader, const VaeConfig& config);

  // One chunk: a latent frame becomes one frame in the cache's first chunk and VaeConfig::temporalFactor() later.
  at::Tensor forward(const at::Tensor& latents, FeatureCache& cache) const;

  at::Tensor enter(const at::Tensor& latents, FeatureCache& cache) const { return conv_in_.forward(cache, latents); }
  at::Tensor middle(at::Tensor hidden, FeatureCache& cache) const;
  size_t upBlocks() const { return up_blocks_.size(); }
  at::Tensor up(size_t index, at::Tensor hidden, FeatureCache& cache) const;
  at::Tensor leave(const at::Tensor& hidden, FeatureCache& cache) const { return head_.forward(hidden, cache); }

 private:
  CausalConv3d conv_in_;
  MidBlock mid_block_;
  std::vector<UpBlock> up_blocks_;
  Head head_;
};

}  // namespace latentd::stages::vae
