#include "stages/wan/attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

namespace latentd::stages::wan {

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& bias) {
  const at::Tensor queries = query.expand({key.size(0), -1, -1, -1}).transpose(1, 2);
  std::optional<at::Tensor> mask;
  if (bias.defined()) mask = bias.expand({key.size(0), 1, query.size(1), key.size(1)});
  return at::scaled_dot_product_attention(queries, key.transpose(1, 2), value.transpose(1, 2), mask).transpose(1, 2);
}

AttentionToValues attendTo(const at::Tensor& value) {
  return [value](const at::Tensor& query, const at::Tensor& key) { return attend(query, key, value); };
}

}  // namespace latentd::stages::wan
