#include "runtime/worker/run_context.h"

#include <utility>

namespace latentd::worker {
namespace {

// Of the step times in StageDone; enough for every real schedule, and the message stays small.
constexpr size_t kStepTimesMax = 1000;

}  // namespace

StepContext::StepContext(Command command, StepGate& gate, ChannelTable& channels, EventSink& events, StallClock& stall,
                         RingFrameSink* ring, stages::FrameSink* without_ring)
    : command_(std::move(command)),
      gate_(gate),
      channels_(channels),
      events_(events),
      stall_(stall),
      ring_(ring),
      without_ring_(without_ring) {}

StatusOr<StepGate::Decision> StepContext::decide(uint32_t step) {
  if (gate_.isLead()) {
    const bool frames_failed = ring_ != nullptr && !ring_->failure().ok();
    if (command_.cancel.stop_requested() || frames_failed) gate_.stop(command_.run, step);
    return gate_.grant(command_.run, step);
  }
  return gate_.waitDecision(command_.run, step, std::chrono::steady_clock::now() + command_.stall_timeout);
}

Status StepContext::beginStep(uint32_t step, uint32_t steps) {
  if (steps > StepGate::kStepMax || step >= steps) {
    return absl::InternalError("the stage began step " + std::to_string(step) + " of " + std::to_string(steps));
  }
  if (step > 0) command_.on_submitted();
  step_ = step;
  entered_ = false;
  LATENTD_ASSIGN_OR_RETURN(const StepGate::Decision decision, decide(step));
  if (decision == StepGate::Decision::kStop) {
    stopped_ = true;
    if (ring_ != nullptr && !ring_->failure().ok()) return ring_->failure();
    return absl::CancelledError("job " + command_.job_id + " was stopped before step " + std::to_string(step) + " of " +
                                std::to_string(steps));
  }
  entered_ = true;
  timer_.begin(step, std::chrono::steady_clock::now());
  return absl::OkStatus();
}

void StepContext::finishStep(uint32_t step, uint32_t steps) {
  const Clock::TimePoint now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> taken = timer_.finish(step, now);
  if (step + 1 == steps) command_.on_near_end();
  command_.on_submitted();
  if (command_.spans != nullptr) {
    command_.spans->addStep(step, now - std::chrono::duration_cast<Clock::Duration>(taken), now);
  }
  if (step_seconds_.size() < kStepTimesMax) step_seconds_.push_back(taken.count());
  noteProgress();
  internal::v1::WorkerEvent event;
  event.mutable_progress()->set_job_id(command_.job_id);
  event.mutable_progress()->set_step(step + 1);
  event.mutable_progress()->set_steps(steps);
  events_.post(std::move(event));
}

void StepContext::noteProgress() {
  stall_.move(std::chrono::steady_clock::now(), command_.stall_timeout);
  channels_.noteProgress();
}

}  // namespace latentd::worker
