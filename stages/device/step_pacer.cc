#include "stages/device/step_pacer.h"

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace latentd::stages {

namespace {

// An interrupt takes 50 to 100 us to wake a sleeping host: the end of a step that is as short as a hand-off's copy is
// seen sooner by looking. Of longer steps it is little of a core.
constexpr std::chrono::microseconds kLook{1000};
// So long before its expected end a method is said to be near it: consumers look for twice as long.
constexpr std::chrono::microseconds kNear{2000};
// How often a device is looked at meanwhile, which may be done sooner than expected: CUDA has no wait with a deadline
// that leaves nothing in its stream.
constexpr std::chrono::microseconds kStride{500};

using c10::cuda::CUDAEvent;

// This thread's events that no step uses: to make one takes as long as to submit a copy. Of one device, as a rule.
std::vector<CUDAEvent>& spareEvents() {
  thread_local std::vector<CUDAEvent> spare;
  return spare;
}

CUDAEvent takeEvent(at::Device device) {
  std::vector<CUDAEvent>& spare = spareEvents();
  const auto of_device = [&](const CUDAEvent& event) { return event.device() == device; };
  const auto found = std::find_if(spare.begin(), spare.end(), of_device);
  // The host sleeps while it waits: other workers need the core.
  if (found == spare.end()) return CUDAEvent(cudaEventDisableTiming | cudaEventBlockingSync);
  CUDAEvent event = std::move(*found);
  spare.erase(found);
  return event;
}

void giveBack(CUDAEvent event) {
  if (event.isCreated()) spareEvents().push_back(std::move(event));
}

}  // namespace

struct StepPacer::InFlight {
  uint32_t step;
  Delivery deliver;
  CUDAEvent done;
};

StepPacer::StepPacer(RunContext& context, at::Device device, uint32_t steps)
    : context_(context), device_(device), steps_(steps) {}

StepPacer::~StepPacer() {
  for (InFlight& step : in_flight_) {
    // An error stays with the device and meets whoever uses it next.
    (void)cudaEventSynchronize(step.done.event());
    giveBack(std::move(step.done));
  }
}

Status StepPacer::begin(uint32_t step) {
  while (in_flight_.size() >= RunContext::kStepsInFlightMax)
    LATENTD_RETURN_IF_ERROR(completeOldest());
  step_ = step;
  const auto now = std::chrono::steady_clock::now();
  // A host that takes as long for a step as its device does not see its end coming otherwise.
  if (step > 0 && step + 1 == steps_ && now - begun_ <= kNear && isIdle()) tellNearEnd();
  begun_ = now;
  if (step == 0) completed_ = now;
  const Status go = context_.beginStep(step, steps_);
  if (go.ok()) return go;
  LATENTD_RETURN_IF_ERROR(finish());
  return go;
}

Status StepPacer::submitted(Delivery deliver) {
  if (!device_.is_cuda()) return report(step_, deliver);
  InFlight& step = in_flight_.emplace_back(step_, std::move(deliver), takeEvent(device_));
  step.done.record(c10::cuda::getCurrentCUDAStream(device_.index()));
  return absl::OkStatus();
}

Status StepPacer::finish() {
  while (!in_flight_.empty())
    LATENTD_RETURN_IF_ERROR(completeOldest());
  return absl::OkStatus();
}

bool StepPacer::isIdle() const { return in_flight_.empty() || in_flight_.back().done.query(); }

void StepPacer::tellNearEnd() {
  if (!std::exchange(told_, true)) context_.nearEnd();
}

void StepPacer::awaitNearEnd() {
  const CUDAEvent& done = in_flight_.front().done;
  const TimePoint near = pace_ ? completed_ + *pace_ - kNear : TimePoint();
  while (std::chrono::steady_clock::now() < near && !done.query())
    std::this_thread::sleep_for(kStride);
  tellNearEnd();
}

Status StepPacer::completeOldest() {
  if (in_flight_.front().step + 1 == steps_) awaitNearEnd();
  const CUDAEvent& done = in_flight_.front().done;
  const auto looked_enough = std::chrono::steady_clock::now() + (told_ ? kLook + kNear : kLook);
  bool complete = done.query();
  while (!complete && std::chrono::steady_clock::now() < looked_enough)
    complete = done.query();
  if (!complete) done.synchronize();
  const auto now = std::chrono::steady_clock::now();
  pace_ = now - std::exchange(completed_, now);
  InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  giveBack(std::move(step.done));
  return report(step.step, step.deliver);
}

Status StepPacer::report(uint32_t step, const Delivery& deliver) {
  if (deliver) LATENTD_RETURN_IF_ERROR(deliver());
  context_.finishStep(step, steps_);
  return absl::OkStatus();
}

}  // namespace latentd::stages
