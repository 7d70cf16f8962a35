#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace latentd::supervisor {

// How long a step of a running stage takes, from those that have ended. Neither a wait for inputs counts nor, once a
// second step has ended, what the first had to prepare. Times are seconds of one clock.
// Owner: who estimates a job's end. Thread: one at a time.
class StepPace {
 public:
  // Known from now on, at this step; it may have ended a while ago.
  void join(uint32_t step, double now) { last_ = {step, now}; }
  // This step has just ended; start: when the stage began to compute.
  void note(uint32_t step, double now, double start) {
    if (step <= last_.step) return;
    start_ = start;
    last_ = {step, now};
    if (!first_) first_ = last_;
  }

  // The last step that is known to have ended, and since when.
  uint32_t step() const { return last_.step; }
  double since() const { return last_.time; }
  std::optional<double> each() const {
    if (!first_) return std::nullopt;
    if (last_.step > first_->step) return (last_.time - first_->time) / (last_.step - first_->step);
    return (first_->time - start_) / first_->step;
  }
  // Of all its steps; nothing before the first that was seen to end.
  std::optional<double> left(uint32_t steps, double now) const {
    const std::optional<double> step = each();
    if (!step || last_.step >= steps) return step ? std::optional<double>(0) : std::nullopt;
    return std::max(0.0, *step * (steps - last_.step) - (now - last_.time));
  }

 private:
  struct End {
    uint32_t step = 0;
    double time = 0;
  };
  double start_ = 0;
  std::optional<End> first_;  // the first that was seen to end
  End last_;
};

}  // namespace latentd::supervisor
