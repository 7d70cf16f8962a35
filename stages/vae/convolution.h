#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stages/weights/layer_loader.h"

namespace latentd::stages::vae {

// Activations are [T, H, W, C] throughout: frames of pixels with their channels innermost, one video at a time. That is
// what convolutions read fastest on every device, norms and linear layers reduce over contiguous memory, and a chunk of
// frames, a feature cache and a frame for display are plain slices.

struct ConvolutionShape {
  int64_t in = 0;
  int64_t out = 0;
  std::vector<int64_t> kernel;   // {time, height, width}, or {height, width} to go frame by frame
  std::vector<int64_t> stride;   // as many as kernel
  std::vector<int64_t> padding;  // of zeros, on both sides
};

// What a convolution sees above and below its input.
enum class Borders {
  kPadded,  // zeros, as its shape says
  kGiven,   // what the input has there: it comes with these rows, and the result is that much lower
};

// A convolution over [T, H, W, C]. On a CPU its weights are kept in oneDNN's own layout, and oneDNN is called directly:
// at batch 1 ATen's choice of kernel is many times slower, and it would reorder the weights on every call. On a device
// they are channels-last, as the activations: in 16-bit types 1.2 times as fast there, and no slower in float32.
// Owner: its layer. Thread: any, immutable. Failure: forward() may throw c10::Error.
class Convolution {
 public:
  Convolution() = default;
  Convolution(ConvolutionShape shape, const at::Tensor& weight, const at::Tensor& bias);
  // "weight" and "bias" of the layer.
  static Convolution load(const LayerLoader& loader, ConvolutionShape shape);

  at::Tensor forward(const at::Tensor& input, Borders borders = Borders::kPadded) const;
  // sum += forward(input), without another pass over memory where the library can. sum is contiguous.
  void addTo(const at::Tensor& sum, const at::Tensor& input, Borders borders = Borders::kPadded) const;

 private:
  const std::vector<int64_t>& padding(Borders borders) const {
    return borders == Borders::kPadded ? shape_.padding : side_padding_;
  }

  ConvolutionShape shape_;
  std::vector<int64_t> side_padding_;  // none in height
  std::vector<int64_t> dilation_;
  at::Tensor weight_;  // oneDNN's layout if packed_
  at::Tensor bias_;
  bool packed_ = false;
};

// A convolution with kernel 1 is a linear layer over the pixels. `dims` is the number of trailing 1s in its weight.
class PointwiseConvolution {
 public:
  static PointwiseConvolution load(const LayerLoader& loader, int64_t in, int64_t out, int64_t dims);

  at::Tensor forward(const at::Tensor& input) const;

 private:
  at::Tensor weight_;  // [out, in]
  at::Tensor bias_;
};

}  // namespace latentd::stages::vae
