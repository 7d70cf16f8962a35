#include "stages/vae/norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/check.h"
#include "stages/vae/norm_kernel.h"

namespace latentd::stages::vae {
namespace {

// Elements a thread should get at least: below, waking it costs more than it saves.
constexpr int64_t kGrainElements = 16384;
constexpr double kSmallestNorm = 1e-12;

template <class Element, class Stored>
void applyOnCpu(const at::Tensor& input, const at::Tensor& output, const at::Tensor& gain, bool silu) {
  const int64_t channels = gain.numel();
  const auto* from = reinterpret_cast<const Element*>(input.const_data_ptr<Stored>());
  auto* to = reinterpret_cast<Element*>(output.mutable_data_ptr<Stored>());
  const float* factors = gain.const_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrainElements / channels);
  at::parallel_for(0, input.numel() / channels, grain, [&](int64_t begin, int64_t end) {
    normaliseBlock(NormBlock<Element>{from + begin * channels, to + begin * channels, factors, end - begin, channels},
                   silu);
  });
}

// Element types of a CPU that have no kernel here.
void applyOperators(const at::Tensor& input, const at::Tensor& output, const at::Tensor& gain, bool silu) {
  const at::Tensor wide = input.to(at::kFloat);
  const at::Tensor norm = at::linalg_vector_norm(wide, 2, at::IntArrayRef{-1}, true).clamp_min_(kSmallestNorm);
  at::Tensor result = wide.div(norm).mul_(gain);
  if (silu) at::silu_(result);
  output.copy_(result);
}

// Two kernels of the library; x / |x| * sqrt(channels) is what it calls the RMS norm.
void applyOnDevice(const at::Tensor& input, const at::Tensor& output, const at::Tensor& gamma, bool silu) {
  const int64_t channels = gamma.numel();
  const at::Tensor result =
      at::rms_norm(input, {channels}, gamma, kSmallestNorm * kSmallestNorm / static_cast<double>(channels));
  if (silu) {
    at::Tensor out = output;
    at::silu_out(out, result);
  } else {
    output.copy_(result);
  }
}

}  // namespace

RmsNorm RmsNorm::load(const LayerLoader& loader, int64_t channels, int64_t trailing) {
  std::vector<int64_t> shape(1 + trailing, 1);
  shape[0] = channels;
  RmsNorm norm;
  const at::Tensor gamma = loader.take("gamma", shape);
  if (!gamma.defined()) return norm;
  norm.gain_ = gamma.flatten();
  if (gamma.is_cpu()) norm.gain_ = norm.gain_.to(at::kFloat).mul(std::sqrt(static_cast<double>(channels)));
  return norm;
}

void RmsNorm::forward(const at::Tensor& input, const at::Tensor& output) const { apply(input, output, false); }

void RmsNorm::forwardSilu(const at::Tensor& input, const at::Tensor& output) const { apply(input, output, true); }

void RmsNorm::apply(const at::Tensor& input, const at::Tensor& output, bool silu) const {
  if (input.is_cpu() && output.dim() == 4 && !output.is_contiguous()) {
    for (int64_t frame = 0; frame < output.size(0); ++frame)
      apply(input.select(0, frame), output.select(0, frame), silu);
    return;
  }
  LATENTD_CHECK(input.is_contiguous() && (output.is_contiguous() || !input.is_cpu()) && input.sizes() == output.sizes(),
                "a norm's input and output are dense and of one shape");
  LATENTD_CHECK(input.size(-1) == gain_.numel(), "a norm's input has its channels innermost");
  if (!input.is_cpu()) {
    applyOnDevice(input, output, gain_, silu);
  } else if (input.scalar_type() == at::kFloat) {
    applyOnCpu<float, float>(input, output, gain_, silu);
  } else if (input.scalar_type() == at::kBFloat16) {
    applyOnCpu<BFloat16Bits, at::BFloat16>(input, output, gain_, silu);
  } else {
    applyOperators(input, output, gain_, silu);
  }
}

}  // namespace latentd::stages::vae
