#pragma once

#include <atomic>

#include "runtime/base/clock.h"

namespace latentd::worker {

// Whether the running command moves within its own limit (`stall_timeout_ms`). Only computing counts: a command that
// waits for inputs or slots waits for its peers, who have limits of their own.
// Owner: the executor. Thread: the executor's moves it, any reads it.
class StallClock {
 public:
  // Computing began, or got further. A limit of zero is none.
  void move(Clock::TimePoint now, Clock::Duration limit) {
    const auto until = limit > Clock::Duration::zero() ? (now + limit).time_since_epoch().count() : kNever;
    until_.store(until, std::memory_order_relaxed);
  }
  void rest() { until_.store(kNever, std::memory_order_relaxed); }
  bool stalled(Clock::TimePoint now) const {
    return now.time_since_epoch().count() > until_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr Clock::Duration::rep kNever = Clock::Duration::max().count();
  std::atomic<Clock::Duration::rep> until_{kNever};
};

}  // namespace latentd::worker
