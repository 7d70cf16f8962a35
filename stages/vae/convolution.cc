#include "stages/vae/convolution.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/linear.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"

namespace latentd::stages::vae {
namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using OptionalTensor = std::optional<at::Tensor>;
using OptionalText = std::optional<std::string_view>;

// oneDNN's operators have schemas but no C++ headers.
template <class Signature>
c10::TypedOperatorHandle<Signature> oneDnn(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

bool canPack(const at::Tensor& weight) {
  if (!weight.device().is_cpu()) return false;
  if (weight.scalar_type() == at::kFloat) return true;
  return weight.scalar_type() == at::kBFloat16 && oneDnn<bool()>("mkldnn::_is_mkldnn_bf16_supported").call();
}

at::MemoryFormat channelsLast(size_t dims) {
  return dims == 3 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

// Dense [T, H, W, C] as the library's batch: one video, or T images. A view, with the strides spelled out: those of
// dimensions of size 1 are arbitrary in a dense tensor, but the library tells channels-last memory by them.
at::Tensor toBatch(const at::Tensor& frames, size_t dims) {
  LATENTD_CHECK(frames.dim() == 4 && frames.is_contiguous(), "a convolution's input is dense [T, H, W, C]");
  const int64_t time = frames.size(0);
  const int64_t height = frames.size(1);
  const int64_t width = frames.size(2);
  const int64_t channels = frames.size(3);
  const int64_t row = width * channels;
  const int64_t frame = height * row;
  if (dims == 2) return frames.as_strided({time, channels, height, width}, {frame, 1, row, channels});
  return frames.as_strided({1, channels, time, height, width}, {time * frame, 1, frame, row, channels});
}

at::Tensor fromBatch(const at::Tensor& batch, size_t dims) {
  const at::Tensor frames = dims == 3 ? batch.permute({0, 2, 3, 4, 1}).squeeze(0) : batch.permute({0, 2, 3, 1});
  return frames.contiguous();
}

}  // namespace

Convolution::Convolution(ConvolutionShape shape, const at::Tensor& weight, const at::Tensor& bias)
    : shape_(std::move(shape)),
      side_padding_(shape_.padding),
      dilation_(shape_.kernel.size(), 1),
      bias_(bias),
      packed_(canPack(weight)) {
  side_padding_[side_padding_.size() - 2] = 0;
  if (packed_) {
    using Reorder = at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t,
                               at::OptionalIntArrayRef);
    weight_ = oneDnn<Reorder>("mkldnn::_reorder_convolution_weight")
                  .call(weight.contiguous(), shape_.padding, shape_.stride, dilation_, 1, std::nullopt);
  } else {
    weight_ = weight.contiguous(channelsLast(shape_.kernel.size()));
  }
}

Convolution Convolution::load(const LayerLoader& loader, ConvolutionShape shape) {
  std::vector<int64_t> weight_shape = {shape.out, shape.in};
  weight_shape.insert(weight_shape.end(), shape.kernel.begin(), shape.kernel.end());
  const at::Tensor weight = loader.take("weight", weight_shape);
  const at::Tensor bias = loader.take("bias", {shape.out});
  if (!weight.defined() || !bias.defined()) return {};
  return Convolution(std::move(shape), weight, bias);
}

at::Tensor Convolution::forward(const at::Tensor& input, Borders borders) const {
  const size_t dims = shape_.kernel.size();
  const at::Tensor batch = toBatch(input, dims);
  if (!packed_) {
    const std::vector<int64_t> no_output_padding(dims, 0);
    return fromBatch(
        at::convolution(batch, weight_, bias_, shape_.stride, padding(borders), dilation_, false, no_output_padding, 1),
        dims);
  }
  using Pointwise = at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&, at::IntArrayRef,
                               at::IntArrayRef, at::IntArrayRef, int64_t, std::string_view, Scalars, OptionalText);
  return fromBatch(
      oneDnn<Pointwise>("mkldnn::_convolution_pointwise")
          .call(batch, weight_, bias_, padding(borders), shape_.stride, dilation_, 1, "none", Scalars(), std::nullopt),
      dims);
}

void Convolution::addTo(const at::Tensor& sum, const at::Tensor& input, Borders borders) const {
  if (!packed_) {
    sum.add_(forward(input, borders));
    return;
  }
  const size_t dims = shape_.kernel.size();
  at::Tensor sum_batch = toBatch(sum, dims);
  using PointwiseSum = at::Tensor&(at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                   at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t, std::string_view,
                                   std::optional<at::Scalar>, OptionalText, Scalars, OptionalText);
  oneDnn<PointwiseSum>("mkldnn::_convolution_pointwise_", "binary")
      .call(sum_batch, toBatch(input, dims), weight_, bias_, padding(borders), shape_.stride, dilation_, 1, "add",
            at::Scalar(1.0), std::nullopt, Scalars(), std::nullopt);
}

PointwiseConvolution PointwiseConvolution::load(const LayerLoader& loader, int64_t in, int64_t out, int64_t dims) {
  std::vector<int64_t> weight_shape = {out, in};
  weight_shape.resize(2 + dims, 1);
  PointwiseConvolution layer;
  const at::Tensor weight = loader.take("weight", weight_shape);
  layer.bias_ = loader.take("bias", {out});
  if (weight.defined()) layer.weight_ = weight.view({out, in});
  return layer;
}

at::Tensor PointwiseConvolution::forward(const at::Tensor& input) const { return at::linear(input, weight_, bias_); }

}  // namespace latentd::stages::vae
