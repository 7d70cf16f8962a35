#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"

namespace latentd::mesh {

// One layer over several ranks (arXiv 1909.08053): the first product of a pair is split by its outputs, so that each
// rank has some of the features, the second by its inputs, so that each has a summand of every feature. What is left to
// do between ranks is here: the sum, and statistics over features that lie on different ranks. A value type over a
// group that outlives it; of a rank that is alone it computes what one rank computes, and no more. Thread: the
// executor's. Failure: throws CommunicationError.
class TensorParallel {
 public:
  TensorParallel() = default;  // alone
  explicit TensorParallel(ProcessGroup& group) : degree_(group.size()), rank_(group.rank()), group_(&group) {}
  // The first of `degree` ranks that are not there: for what it would have; it must not compute.
  static TensorParallel planned(int64_t degree);

  int64_t degree() const { return degree_; }
  int64_t rank() const { return rank_; }

  // x: this rank's inputs, [..., in / degree]; weight: [out, in / degree]; bias: [out], the same on every rank, added
  // once. Returns [..., out] on every rank.
  at::Tensor rowLinear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const;

  // RMS norm of each x over the features of all ranks together, [..., features / degree], by weights of the same
  // features. One reduction for all of them.
  std::vector<at::Tensor> rmsNorm(const std::vector<at::Tensor>& x, const std::vector<at::Tensor>& weights,
                                  double eps) const;

 private:
  ProcessGroup& group() const;

  int64_t degree_ = 1;
  int64_t rank_ = 0;
  ProcessGroup* group_ = nullptr;  // null: alone, or planned
};

}  // namespace latentd::mesh
