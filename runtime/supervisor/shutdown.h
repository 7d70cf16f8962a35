#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/base/clock.h"

namespace latentd::supervisor {

// The daemon's way to its end, as deadlines: what is running may finish, then it is cancelled, then the workers end.
// Owner: Supervisor. Thread: the supervisor's loop. Pure logic.
// States: serving -> draining -> cancelling -> stopping workers. Each ends early when nothing is left of what it waits
// for; a signal shortens what an earlier Drain allowed.
class Shutdown {
 public:
  enum class Phase {
    kServing,
    kDraining,         // no admission; jobs go on
    kCancelling,       // every job was cancelled
    kStoppingWorkers,  // no job is left, or none of it ends
  };

  Shutdown(const Clock& clock, std::chrono::milliseconds grace) : clock_(clock), grace_(grace) {}

  Phase phase() const { return phase_; }
  // Jobs may go on for so long.
  void drain(std::chrono::milliseconds allowed);
  // The daemon must be gone within its grace; what runs may finish for a part of it.
  void interrupt() { drain(jobGrace()); }
  std::chrono::milliseconds jobGrace() const { return grace_ * kDrainPercent / 100; }
  // Whether the next phase begins now; `idle`: no job is left anywhere.
  bool advance(bool idle);
  // What the workers may take to end.
  std::chrono::milliseconds workerGrace() const { return grace_ * kWorkerPercent / 100; }
  Clock::TimePoint nextDeadline() const;

 private:
  // Shares of the grace. Finishing is what users want most; a cancel takes a step of the model; workers only unmap and
  // close. The rest is for stopping the servers.
  static constexpr int64_t kDrainPercent = 50;
  static constexpr int64_t kCancelPercent = 25;
  static constexpr int64_t kWorkerPercent = 15;

  const Clock& clock_;
  const std::chrono::milliseconds grace_;
  Phase phase_ = Phase::kServing;
  Clock::TimePoint deadline_ = Clock::TimePoint::max();
};

}  // namespace latentd::supervisor
