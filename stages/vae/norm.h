#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stages/weights/layer_loader.h"

namespace latentd::stages::vae {

// Wan's "RMS" norm: each pixel's channels are scaled to the Euclidean norm sqrt(channels), then by gamma. There is no
// mean and no epsilon under the root; a norm below 1e-12 counts as 1e-12 (or is added to it, on a device). Computed in
// float32 and rounded once.
// Owner: its block. Thread: any, immutable. Failure: may throw c10::Error.
class RmsNorm {
 public:
  // "gamma", whose shape is [channels] and `trailing` ones.
  static RmsNorm load(const LayerLoader& loader, int64_t channels, int64_t trailing);

  // input: [..., C] contiguous. The result goes to `output`, of the same shape: contiguous, or frames [T, H, W, C] each
  // of which is.
  void forward(const at::Tensor& input, const at::Tensor& output) const;
  // The same with SiLU on top.
  void forwardSilu(const at::Tensor& input, const at::Tensor& output) const;

 private:
  void apply(const at::Tensor& input, const at::Tensor& output, bool silu) const;

  at::Tensor gain_;  // on a CPU in float32: gamma * sqrt(channels); on a device gamma
};

}  // namespace latentd::stages::vae
