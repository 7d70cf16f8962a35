#pragma once

#include <chrono>
#include <map>

#include "runtime/base/clock.h"

namespace latentd {

// Which of the signals that ask a process to end count: what a terminal, `timeout` and the like send to the process and
// again to its group is one signal to a person.
// Owner and thread: whoever reads the signals.
class SignalFilter {
 public:
  static constexpr std::chrono::milliseconds kSameSignal{300};

  // False for the same signal again within kSameSignal of one that counted.
  bool counts(int signal_number, Clock::TimePoint now) {
    const auto [counted, first] = counted_.try_emplace(signal_number, now);
    if (!first && now - counted->second < kSameSignal) return false;
    counted->second = now;
    return true;
  }

 private:
  std::map<int, Clock::TimePoint> counted_;  // by number: when it counted last
};

}  // namespace latentd
