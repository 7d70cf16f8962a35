#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/step_gate.h"
#include "runtime/worker/channel_table.h"
#include "runtime/worker/event_sink.h"
#include "runtime/worker/ring_frame_sink.h"
#include "runtime/worker/span_record.h"
#include "runtime/worker/stall_clock.h"
#include "stages/stage.h"
#include "stages/step_timer.h"

namespace latentd::worker {

// What one command's method may ask of the worker. Steps are agreed on with the other ranks through the step gate; the
// lead's cancellation decides, so that all ranks stop at the same step.
// Owner: one running command. Thread: the executor's. Failure: beginStep() returns why the run ends.
class StepContext final : public stages::RunContext {
 public:
  struct Command {
    std::string job_id;
    uint64_t run = 0;                 // number of the command, see StepGate
    Clock::Duration stall_timeout{};  // also how long a rank waits for the lead's decision
    std::stop_token cancel;
    SpanRecord* spans = nullptr;  // for its steps
    // The stage has submitted a step: no device waits for this thread. Before a step that is not the first, and after
    // each.
    std::function<void()> on_submitted = [] {};
    // The last step is complete, or is about to be: outputs follow.
    std::function<void()> on_near_end = [] {};
  };

  // `ring` is null on ranks that have none; a method that emits frames writes to `without_ring` there.
  StepContext(Command command, StepGate& gate, ChannelTable& channels, EventSink& events, StallClock& stall,
              RingFrameSink* ring, stages::FrameSink* without_ring);

  Status beginStep(uint32_t step, uint32_t steps) override;
  void nearEnd() override { command_.on_near_end(); }
  void finishStep(uint32_t step, uint32_t steps) override;
  stages::FrameSink* frames() override { return ring_ != nullptr ? ring_ : without_ring_; }

  // The run moved without finishing a step: a frame was written.
  void noteProgress();
  uint32_t currentStep() const { return step_; }
  // The first step that no rank can have entered.
  uint32_t nextStep() const { return entered_ ? step_ + 1 : step_; }
  // The gate stopped the run: every rank leaves it before the same step.
  bool stopped() const { return stopped_; }
  const std::vector<double>& stepSeconds() const { return step_seconds_; }

 private:
  StatusOr<StepGate::Decision> decide(uint32_t step);

  const Command command_;
  StepGate& gate_;
  ChannelTable& channels_;
  EventSink& events_;
  StallClock& stall_;
  RingFrameSink* const ring_;
  stages::FrameSink* const without_ring_;
  uint32_t step_ = 0;
  bool entered_ = false;  // step_ was granted
  bool stopped_ = false;
  stages::StepTimer timer_;
  std::vector<double> step_seconds_;
};

}  // namespace latentd::worker
