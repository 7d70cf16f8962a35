#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "stages/stage.h"

namespace latentd::stages {

// How long each step of a method took, where a step may be begun before the one before it is finished: from when it was
// begun or, if later, from when the one before was finished. Owner: a RunContext. Thread: one.
class StepTimer {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void begin(uint32_t step, TimePoint now) { begun_[step % begun_.size()] = now; }
  std::chrono::duration<double> finish(uint32_t step, TimePoint now) {
    const TimePoint from = std::max(begun_[step % begun_.size()], finished_);
    finished_ = now;
    return now - from;
  }

 private:
  std::array<TimePoint, RunContext::kStepsInFlightMax> begun_{};
  TimePoint finished_{};
};

}  // namespace latentd::stages
