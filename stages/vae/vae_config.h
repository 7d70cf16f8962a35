#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace latentd::stages::vae {

// config.json of an AutoencoderKLWan (Wan 2.1, and the residual one of Wan 2.2). A value type; load() checks it whole.
struct VaeConfig {
  int64_t base_dim = 96;          // channels of the encoder's first block
  int64_t decoder_base_dim = 96;  // channels of the decoder's last block
  int64_t z_dim = 16;
  std::vector<int64_t> dim_mult;  // channel multipliers, from pixels to latents
  int64_t num_res_blocks = 2;
  std::vector<double> attn_scales;        // scales at which the encoder attends; 1 is full size
  std::vector<bool> temporal_downsample;  // one per spatial halving
  bool is_residual = false;               // Wan 2.2: shortcuts around whole blocks
  int64_t in_channels = 3;                // after patching
  int64_t out_channels = 3;               // before unpatching
  int64_t patch_size = 1;
  std::vector<double> latents_mean;
  std::vector<double> latents_std;

  // Refuses, by file, key and value, what the model code does not implement or what does not fit together.
  static StatusOr<VaeConfig> load(const std::string& path);

  int64_t temporalFactor() const;  // pixel frames per latent frame, the first one apart
  int64_t spatialFactor() const;   // pixels per latent, patching included
  int64_t imageChannels() const { return out_channels / (patch_size * patch_size); }
  int64_t frames(int64_t latent_frames) const { return 1 + (latent_frames - 1) * temporalFactor(); }
  int64_t latentFrames(int64_t frames) const { return 1 + (frames - 1) / temporalFactor(); }
};

}  // namespace latentd::stages::vae
