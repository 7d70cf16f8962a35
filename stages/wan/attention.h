#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace latentd::stages::wan {

// The attention of query and key to values that were given before: all of them [B, S, heads, head_dim], and so is the
// result. Called once.
using AttentionToValues = std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key)>;
// How the tokens of a video attend to each other. Values first: they are neither normalised nor rotated, so a strategy
// over several ranks moves them while queries and keys are. Model code calls it and knows no more; such a strategy sees
// the tokens of its own rank here.
using SelfAttention = std::function<AttentionToValues(const at::Tensor& value)>;

// Scaled dot-product attention in this process. bias: absent, or [S of key], float32, added to the scores of each key.
// A query batch of 1 serves every batch of key and value.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& bias = {});
// attend(), of all tokens to each other.
AttentionToValues attendTo(const at::Tensor& value);

}  // namespace latentd::stages::wan
