#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace latentd::stages::wan {

// How the tokens of a video attend to each other: query, key and value are [B, S, heads, head_dim], and so is the
// result. Model code calls it and knows no more; a strategy over several ranks sees the tokens of its own rank here.
using SelfAttention =
    std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)>;

// Scaled dot-product attention in this process. bias: absent, or [S of key], float32, added to the scores of each key.
// A query batch of 1 serves every batch of key and value.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& bias = {});

}  // namespace latentd::stages::wan
