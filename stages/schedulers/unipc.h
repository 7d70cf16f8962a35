#pragma once

#include <cstdint>
#include <deque>

#include <ATen/core/Tensor.h>

#include "stages/schedulers/scheduler.h"

namespace latentd::stages {

// UniPC, predictor and corrector in B(h) form over data predictions (Zhao et al. 2023), for flow matching: alpha =
// 1 - sigma, x0 = sample - sigma * velocity. Coefficients are 0-dim float32 tensors, not doubles: the last step has
// sigma 0, lambda = inf and B(h) = -1, and gives exactly x0.
// Owner, thread, states and failure: as Scheduler.
class UniPcScheduler final : public Scheduler {
 public:
  explicit UniPcScheduler(const UniPcConfig& config) : config_(config) {}

  void setTimesteps(int64_t steps) override;
  at::Tensor step(const at::Tensor& model_output, const at::Tensor& sample) override;

 private:
  // What predictor and corrector share for the interval from sigmas_[from] to sigmas_[to].
  struct Interval;
  Interval interval(int64_t from, int64_t to, int64_t order) const;
  at::Tensor lambda(int64_t index) const;
  at::Tensor predict(const at::Tensor& sample) const;
  at::Tensor correct(const at::Tensor& data) const;

  UniPcConfig config_;
  int64_t index_ = 0;            // of the step to come
  int64_t order_ = 0;            // of the last prediction, which the next correction uses
  int64_t history_ = 0;          // steps done, at most solver_order: multistep warms up
  std::deque<at::Tensor> data_;  // data predictions, newest last, at most solver_order
  at::Tensor last_sample_;       // before the last prediction
};

}  // namespace latentd::stages
