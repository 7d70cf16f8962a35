#pragma once

#include <cstdint>
#include <limits>
#include <random>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace latentd::mesh::testing {

// Standard normal, the same on every rank that drew the same before.
inline at::Tensor randomTensor(at::IntArrayRef shape, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  at::Tensor tensor = at::empty(shape, at::kFloat);
  float* values = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i)
    values[i] = normal(random);
  return tensor;
}

inline int64_t randomInteger(int64_t low, int64_t high, std::mt19937_64& random) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// Infinity for different shapes and where one is NaN.
inline double maxDifference(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  const at::Tensor difference = actual.to(at::kDouble).sub(expected.to(at::kDouble)).abs();
  if (difference.isnan().any().item<bool>()) return std::numeric_limits<double>::infinity();
  return difference.max().item<double>();
}

inline double rmsDifference(const at::Tensor& actual, const at::Tensor& expected) {
  return actual.to(at::kDouble).sub(expected.to(at::kDouble)).square().mean().sqrt().item<double>();
}

}  // namespace latentd::mesh::testing
