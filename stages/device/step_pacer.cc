#include "stages/device/step_pacer.h"

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <utility>

namespace latentd::stages {

namespace {

// An interrupt takes 50 to 100 us to wake a sleeping host: the end of a step that is as short as a hand-off's copy is
// seen sooner by looking. Of longer steps it is little of a core.
constexpr std::chrono::microseconds kLook{1000};

}  // namespace

struct StepPacer::InFlight {
  uint32_t step;
  Delivery deliver;
  // The host sleeps while it waits: other workers need the core.
  c10::cuda::CUDAEvent done{cudaEventDisableTiming | cudaEventBlockingSync};
};

StepPacer::StepPacer(RunContext& context, at::Device device, uint32_t steps)
    : context_(context), device_(device), steps_(steps) {}

StepPacer::~StepPacer() {
  for (const InFlight& step : in_flight_)
    // An error stays with the device and meets whoever uses it next.
    (void)cudaEventSynchronize(step.done.event());
}

Status StepPacer::begin(uint32_t step) {
  while (in_flight_.size() >= RunContext::kStepsInFlightMax)
    LATENTD_RETURN_IF_ERROR(completeOldest());
  step_ = step;
  const Status go = context_.beginStep(step, steps_);
  if (go.ok()) return go;
  LATENTD_RETURN_IF_ERROR(finish());
  return go;
}

Status StepPacer::submitted(Delivery deliver) {
  if (!device_.is_cuda()) return report(step_, deliver);
  InFlight& step = in_flight_.emplace_back();
  step.step = step_;
  step.deliver = std::move(deliver);
  step.done.record(c10::cuda::getCurrentCUDAStream(device_.index()));
  return absl::OkStatus();
}

Status StepPacer::finish() {
  while (!in_flight_.empty())
    LATENTD_RETURN_IF_ERROR(completeOldest());
  return absl::OkStatus();
}

Status StepPacer::completeOldest() {
  const c10::cuda::CUDAEvent& done = in_flight_.front().done;
  const auto looked_enough = std::chrono::steady_clock::now() + kLook;
  bool complete = done.query();
  while (!complete && std::chrono::steady_clock::now() < looked_enough)
    complete = done.query();
  if (!complete) done.synchronize();
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  return report(step.step, step.deliver);
}

Status StepPacer::report(uint32_t step, const Delivery& deliver) {
  if (deliver) LATENTD_RETURN_IF_ERROR(deliver());
  context_.finishStep(step, steps_);
  return absl::OkStatus();
}

}  // namespace latentd::stages
