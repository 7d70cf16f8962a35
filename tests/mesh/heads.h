#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/head_scatter.h"

namespace latentd::mesh::testing {

// What one rank gives in a round, or has got.
struct Heads {
  at::Tensor query, key, value;
};

// In the order in which an attention has them.
inline Heads scatter(HeadScatter& scatter, const Heads& given) {
  scatter.begin(given.value.sizes(), given.value.scalar_type());
  PendingHeads value = scatter.submit(HeadTag::kValue, given.value);
  PendingHeads query = scatter.submit(HeadTag::kQuery, given.query);
  PendingHeads key = scatter.submit(HeadTag::kKey, given.key);
  Heads got;
  got.query = query.wait();
  got.key = key.wait();
  got.value = value.wait();
  return got;
}

}  // namespace latentd::mesh::testing
