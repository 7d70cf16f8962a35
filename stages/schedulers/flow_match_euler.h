#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stages/schedulers/scheduler.h"

namespace latentd::stages {

// Euler's method along the velocity. The range of noise levels is taken from the shifted training schedule and shifted
// a second time, as the reference does. Owner, thread, states and failure: as Scheduler.
class FlowMatchEulerScheduler final : public Scheduler {
 public:
  explicit FlowMatchEulerScheduler(const FlowMatchEulerConfig& config) : config_(config) {}

  void setTimesteps(int64_t steps) override;
  // The result has the dtype of model_output.
  at::Tensor step(const at::Tensor& model_output, const at::Tensor& sample) override;

 private:
  FlowMatchEulerConfig config_;
  int64_t index_ = 0;  // of the step to come
};

}  // namespace latentd::stages
