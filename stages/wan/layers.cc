#include "stages/wan/layers.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include <cmath>
#include <optional>
#include <string_view>

namespace latentd::stages::wan {
namespace {

constexpr double kMaxPeriod = 10000.0;

// Of torch's operator mkldnn::_linear_pointwise, which has no C++ header.
using LinearPointwise = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                   std::string_view attribute, c10::List<std::optional<at::Scalar>> scalars,
                                   std::optional<std::string_view> algorithm);

// Absent from builds of torch without oneDNN.
std::optional<c10::OperatorHandle> findLinearPointwise() {
  return c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
}

}  // namespace

Linear Linear::load(const LayerLoader& loader, int64_t out, int64_t in, const WeightPart& part) {
  return {loader.take("weight", {out, in}, part), loader.take("bias", {out}, part.dim == 0 ? part : WeightPart())};
}

Linear Linear::loadFused(const LayerLoader& loader, const std::vector<std::string>& names, int64_t out, int64_t in,
                         const WeightPart& part) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (const std::string& name : names) {
    const Linear layer = load(loader.child(name), out, in, part);
    if (layer.weight.defined()) weights.push_back(layer.weight);
    if (layer.bias.defined()) biases.push_back(layer.bias);
  }
  // Each has been asked for, so that a checkpoint that is only checked is checked whole.
  if (weights.size() < names.size() || biases.size() < names.size()) return {};
  return {at::cat(weights), at::cat(biases)};
}

at::Tensor Linear::operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }

at::Tensor Linear::thenGelu(const at::Tensor& x) const {
  if (x.is_cpu() && x.scalar_type() == at::kFloat) {
    if (const auto fused = findLinearPointwise()) {
      return fused->typed<LinearPointwise>().call(x, weight, bias, "gelu", c10::List<std::optional<at::Scalar>>(),
                                                  "tanh");
    }
  }
  return at::gelu((*this)(x), "tanh");
}

at::Tensor affineNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return at::layer_norm(x.to(at::kFloat), {x.size(-1)}, weight, bias, eps).to(x.scalar_type());
}

at::Tensor scaledNorm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, double eps) {
  const int64_t dim = x.size(-1);
  const bool one_row = scale.numel() == dim;
  if (one_row && x.scalar_type() == at::kFloat) return affineNorm(x, scale.view({dim}), shift.view({dim}), eps);
  return affineNorm(x.to(at::kFloat), {}, {}, eps).mul_(scale).add_(shift).to(x.scalar_type());
}

at::Tensor gatedSum(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  // Not addcmul, which does not round the product.
  return x.to(at::kFloat).add_(y.to(at::kFloat).mul(gate)).to(x.scalar_type());
}

at::Tensor sinusoid(const at::Tensor& timesteps, int64_t dim) {
  const int64_t half = dim / 2;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(timesteps.device());
  const at::Tensor frequencies = at::arange(half, options).mul(-std::log(kMaxPeriod)).div(half).exp();
  const at::Tensor angles = timesteps.to(at::kFloat).unsqueeze(-1).mul(frequencies);
  return at::cat({angles.cos(), angles.sin()}, -1);
}

}  // namespace latentd::stages::wan
