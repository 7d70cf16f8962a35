#include "mesh/block_attention.h"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <random>

#include "mesh/ring.h"
#include "tests/mesh/random_tensor.h"
#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using testing::maxDifference;
using testing::randomInteger;
using testing::randomTensor;

TEST_CASE("block attention: output and log-sum-exp are those of the definition", "[mesh]") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20; ++i) {
    const int64_t rows = randomInteger(1, 70, random);
    const at::Tensor q = randomTensor({2, rows, 3, 12}, random);
    const at::Tensor k = randomTensor({2, randomInteger(1, 70, random), 3, 12}, random);
    const at::Tensor v = randomTensor(k.sizes(), random);
    const PartialAttention partial = attendBlock(q, k, v);
    const at::Tensor scores = at::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})).div(std::sqrt(12.0));
    const at::Tensor expected = at::matmul(scores.softmax(-1), v.transpose(1, 2)).transpose(1, 2);
    CHECK(maxDifference(partial.output, expected) <= 2e-6);
    CHECK(maxDifference(partial.log_sum_exp, at::logsumexp(scores, {-1}).transpose(1, 2).unsqueeze(-1)) <= 2e-6);
  }
}

TEST_CASE("block attention: blocks merged one by one are the attention to all", "[mesh]") {
  std::mt19937_64 random(4);
  for (int i = 0; i < 20; ++i) {
    const int64_t keys = randomInteger(2, 90, random);
    // Large scores, so that a block may outweigh others by far.
    const at::Tensor q = randomTensor({1, 7, 2, 8}, random).mul(i % 2 == 0 ? 1 : 30);
    const at::Tensor k = randomTensor({1, keys, 2, 8}, random);
    const at::Tensor v = randomTensor({1, keys, 2, 8}, random);
    const at::Tensor expected =
        at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2);
    const int64_t first = randomInteger(1, keys - 1, random);
    PartialAttention sum = attendBlock(q, k.narrow(1, 0, first), v.narrow(1, 0, first));
    for (int64_t at = first; at < keys;) {
      const int64_t length = randomInteger(1, keys - at, random);
      merge(sum, attendBlock(q, k.narrow(1, at, length), v.narrow(1, at, length)));
      at += length;
    }
    CHECK(maxDifference(sum.output, expected) <= 5e-6);
  }
}

TEST_CASE("reused buffer: memory is reused for what fits, and grows for what does not", "[mesh]") {
  RingBuffers buffers;
  const at::TensorOptions options(at::kFloat);
  const at::Tensor large = buffers[0].view({4, 5}, options);
  const at::Tensor small = buffers[0].view({2, 3}, options);
  CHECK(small.data_ptr() == large.data_ptr());
  CHECK(small.sizes() == at::IntArrayRef({2, 3}));
  CHECK(small.is_contiguous());
  CHECK(buffers[1].view({2, 3}, options).data_ptr() != large.data_ptr());
  CHECK(buffers[0].view({5, 5}, options).numel() == 25);
  CHECK(buffers[0].view({2}, options.dtype(at::kHalf)).scalar_type() == at::kHalf);
}

}  // namespace
}  // namespace latentd::mesh
