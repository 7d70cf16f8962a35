#pragma once

#include <cstdint>

#include "runtime/base/clock.h"

namespace latentd::channel {

// Measures how long a peer's progress word has stood still. A value type; start a new one for each wait.
class ProgressWatch {
 public:
  ProgressWatch(const Clock& clock, uint64_t word) : clock_(&clock), word_(word), since_(clock.now()) {}

  // Takes the word as it is now; time without a change so far.
  Clock::Duration still(uint64_t word) {
    const Clock::TimePoint now = clock_->now();
    if (word != word_) {
      word_ = word;
      since_ = now;
    }
    return now - since_;
  }

 private:
  const Clock* clock_;
  uint64_t word_;
  Clock::TimePoint since_;
};

}  // namespace latentd::channel
