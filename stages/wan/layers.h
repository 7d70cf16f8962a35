#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stages/weights/layer_loader.h"

namespace latentd::stages::wan {

// y = x W^T + b. A value type; empty if its loader gave nothing.
struct Linear {
  at::Tensor weight;
  at::Tensor bias;

  // part: of the weight [out, in]. With some of the outputs (dim 0) come their biases, with some of the inputs all.
  static Linear load(const LayerLoader& loader, int64_t out, int64_t in, const WeightPart& part = {});
  // Several layers over the same input as one, their outputs side by side; each of `out` features.
  static Linear loadFused(const LayerLoader& loader, const std::vector<std::string>& names, int64_t out, int64_t in,
                          const WeightPart& part = {});

  at::Tensor operator()(const at::Tensor& x) const;
  // GELU (tanh form) of the product. On a CPU in float32 both are one oneDNN call: torch's own tanh GELU can take
  // longer than the product there. In 16-bit types the product is rounded in between, as in the reference.
  at::Tensor thenGelu(const at::Tensor& x) const;
};

// LayerNorm of x over its last dimension, in float32 and rounded once to x's type (torch's own mixed kernel rounds its
// statistics otherwise). weight and bias: [dim], float32, or undefined.
at::Tensor affineNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

// LayerNorm of x in float32, times scale, plus shift, rounded once to x's type. scale and shift: float32, either one
// row (any shape of `dim` elements; one pass over x then) or broadcastable to x.
at::Tensor scaledNorm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, double eps);

// x + y * gate, computed in float32 and rounded once to x's type. Float32 x is changed in place.
at::Tensor gatedSum(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate);

// [timesteps..., dim], float32: cosines, then sines, of t * 10000^(-i / (dim / 2)).
at::Tensor sinusoid(const at::Tensor& timesteps, int64_t dim);

}  // namespace latentd::stages::wan
