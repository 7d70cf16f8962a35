#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "runtime/base/status.h"

namespace latentd::stages::wan {

// config.json of a WanTransformer3DModel for text to video. A value type; load() checks it whole.
struct TransformerConfig {
  std::array<int64_t, 3> patch_size = {1, 2, 2};  // frames, height, width
  int64_t heads = 40;
  int64_t head_dim = 128;
  int64_t in_channels = 16;
  int64_t out_channels = 16;
  int64_t text_dim = 4096;
  int64_t freq_dim = 256;  // of the timestep's sinusoid
  int64_t ffn_dim = 13824;
  int64_t layers = 40;
  bool cross_attn_norm = true;
  double eps = 1e-6;
  int64_t rope_max_seq_len = 1024;  // patches along each axis

  // Refuses, by file, key and value, other classes and what conditions on images.
  static StatusOr<TransformerConfig> load(const std::string& path);

  int64_t dim() const { return heads * head_dim; }
  int64_t patchVolume() const { return patch_size[0] * patch_size[1] * patch_size[2]; }
};

}  // namespace latentd::stages::wan
