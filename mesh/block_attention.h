#pragma once

#include <ATen/core/Tensor.h>

// Attention to the keys of a sequence block by block.
namespace latentd::mesh {

// The attention of queries to some of the keys, and what merging it with the attention to others needs.
struct PartialAttention {
  at::Tensor output;       // [B, S, H, D]
  at::Tensor log_sum_exp;  // [B, S, H, 1], float32: of the scaled scores of each query
};

// Scaled dot-product attention, by torch's kernel for the device and type. query: [B, S, H, D]; key and value
// [B, at least one row, H, D]; any strides with D innermost.
PartialAttention attendBlock(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

// Makes `sum` the attention to the keys of both. The output of `sum` is float32 and is changed in place.
void merge(PartialAttention& sum, const PartialAttention& block);

}  // namespace latentd::mesh
