#include "mesh/block_attention.h"

#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/logaddexp.h>

#include <cmath>
#include <optional>
#include <tuple>

namespace latentd::mesh {
namespace {

// Of the features of a head, for CUDA's kernels; zeros change no score.
constexpr int64_t kFeatureMultiple = 8;

at::Tensor padFeatures(const at::Tensor& x) {
  const int64_t missing = (kFeatureMultiple - x.size(-1) % kFeatureMultiple) % kFeatureMultiple;
  return missing == 0 ? x : at::constant_pad_nd(x, {0, missing});
}

// All of [B, H, S, D], and the log-sum-exp [B, H, S], natural, from each of torch's kernels.
std::tuple<at::Tensor, at::Tensor> onCuda(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
  const at::Tensor q = padFeatures(query);
  const at::Tensor k = padFeatures(key);
  const at::Tensor v = padFeatures(value);
  at::Tensor output;
  at::Tensor log_sum_exp;
  if (query.scalar_type() == at::kFloat) {
    auto result = at::_scaled_dot_product_efficient_attention(q, k, v, std::nullopt, true, 0.0, false, scale);
    output = std::get<0>(result);
    // Its rows are padded to a multiple of 32.
    log_sum_exp = std::get<1>(result).narrow(-1, 0, query.size(-2));
  } else {
    auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, false, false, scale);
    output = std::get<0>(result);
    log_sum_exp = std::get<1>(result);
  }
  return {output.narrow(-1, 0, query.size(-1)), log_sum_exp};
}

}  // namespace

PartialAttention attendBlock(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const at::Tensor q = query.transpose(1, 2);
  const at::Tensor k = key.transpose(1, 2);
  const at::Tensor v = value.transpose(1, 2);
  const auto [output, log_sum_exp] =
      q.is_cpu() ? at::_scaled_dot_product_flash_attention_for_cpu(q, k, v) : onCuda(q, k, v);
  return {output.transpose(1, 2), log_sum_exp.transpose(1, 2).unsqueeze(-1)};
}

void merge(PartialAttention& sum, const PartialAttention& block) {
  const at::Tensor weight = block.log_sum_exp.sub(sum.log_sum_exp).sigmoid_();
  sum.output.lerp_(block.output.to(at::kFloat), weight);
  sum.log_sum_exp = at::logaddexp(sum.log_sum_exp, block.log_sum_exp);
}

}  // namespace latentd::mesh
