#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "stages/vae/vae_config.h"
#include "stages/wan/transformer_config.h"

namespace latentd::stages::wan {

// The latents of a video.
struct LatentShape {
  int64_t channels = 0;
  int64_t frames = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t elements() const { return channels * frames * height * width; }
};

// What those who ask for a video call its sizes.
struct VideoNames {
  std::string_view frames = "frames";
  std::string_view height = "height";
  std::string_view width = "width";
};

// A checkpoint that wan.denoiser serves, and what it takes of a job: from configurations alone, for whoever loads or
// plans. A value type.
struct ServedModel {
  TransformerConfig transformer;
  vae::VaeConfig vae;

  // Refuses, by file and key, what is not served: two transformers, a timestep a token, image conditioning, other
  // classes.
  static StatusOr<ServedModel> load(const std::string& model_dir);

  int64_t frameStep() const { return vae.temporalFactor(); }  // frames are 1 + k * frameStep()
  int64_t framesMax() const;
  int64_t sizeMultiple() const;  // of both sides, pixels
  // INVALID_ARGUMENT by name, with the nearest valid values.
  Status checkVideo(int64_t frames, int64_t height, int64_t width, const VideoNames& names = {}) const;
  // Of a video that passed.
  LatentShape latentShape(int64_t frames, int64_t height, int64_t width) const;
};

}  // namespace latentd::stages::wan
