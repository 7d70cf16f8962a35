#pragma once

#include <cstdint>

#include "channel/channel.h"
#include "channel/handoff_observer.h"
#include "runtime/base/clock.h"

namespace latentd::channel {

// One part of a call, from here on. Without an observer not even the clock is read. Owner, thread: the call.
class HandoffTimer {
 public:
  HandoffTimer(const WaitOptions& wait, const Clock& clock, HandoffPhase phase, SequenceNumber sequence)
      : observer_(wait.observer), clock_(clock), phase_(phase), sequence_(sequence) {
    if (observer_ != nullptr) start_ = clock_.now();
  }
  void end(uint64_t bytes = 0) const {
    if (observer_ != nullptr) observer_->onSpan({phase_, sequence_, start_, clock_.now(), bytes});
  }

 private:
  HandoffObserver* const observer_;
  const Clock& clock_;
  const HandoffPhase phase_;
  const SequenceNumber sequence_;
  Clock::TimePoint start_;
};

}  // namespace latentd::channel
