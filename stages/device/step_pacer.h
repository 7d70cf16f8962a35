#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>

#include <ATen/core/Tensor.h>

#include "runtime/base/status.h"
#include "stages/stage.h"

namespace latentd::stages {

// Walks one method through its steps and tells the worker of each once the device has completed it. The host submits
// at most RunContext::kStepsInFlightMax steps ahead, so that the device never idles between two steps, and a job that
// is cancelled ends at most that much later. On a CPU a step is complete when it was submitted.
// Owner: a running method. Thread: one. States: begin(0) -> submitted() -> begin(1) -> ... -> finish().
// Failure: what the worker or a delivery says; a device error is thrown. The destructor waits until the device has left
// the steps of a method that ended early: its job is not over before.
class StepPacer {
 public:
  // Hands on what a complete step produced.
  using Delivery = std::function<Status()>;

  StepPacer(RunContext& context, at::Device device, uint32_t steps);
  ~StepPacer();
  StepPacer(const StepPacer&) = delete;
  StepPacer& operator=(const StepPacer&) = delete;

  // Before step `step` is submitted. CANCELLED and others: the method returns that status.
  Status begin(uint32_t step);
  // After all of the step was submitted to the device's current stream. `deliver` runs, on this thread, when the step
  // is complete and before it is reported.
  Status submitted(Delivery deliver = nullptr);
  // Completes what is in flight.
  Status finish();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct InFlight;
  // Whatever was submitted is complete.
  bool isIdle() const;
  // Tells of the last step's end, as it approaches.
  void awaitNearEnd();
  void tellNearEnd();
  Status completeOldest();
  Status report(uint32_t step, const Delivery& deliver);

  RunContext& context_;
  const at::Device device_;
  const uint32_t steps_;
  uint32_t step_ = 0;  // begun last
  TimePoint begun_{};
  TimePoint completed_{};                                    // the last complete one
  std::optional<std::chrono::steady_clock::duration> pace_;  // of complete steps, from end to end
  bool told_ = false;
  std::list<InFlight> in_flight_;
};

}  // namespace latentd::stages
