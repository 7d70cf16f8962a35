#include "runtime/supervisor/shutdown.h"

#include <algorithm>

namespace latentd::supervisor {

void Shutdown::drain(std::chrono::milliseconds allowed) {
  if (phase_ != Phase::kServing && phase_ != Phase::kDraining) return;
  phase_ = Phase::kDraining;
  const Clock::TimePoint now = clock_.now();
  if (Clock::TimePoint::max() - now > allowed) deadline_ = std::min(deadline_, now + allowed);
}

bool Shutdown::advance(bool idle) {
  const bool over = idle || deadline_ <= clock_.now();
  if (phase_ == Phase::kDraining && over) {
    phase_ = Phase::kCancelling;
    deadline_ = clock_.now() + grace_ * kCancelPercent / 100;
    return true;
  }
  if (phase_ == Phase::kCancelling && over) {
    phase_ = Phase::kStoppingWorkers;
    deadline_ = Clock::TimePoint::max();
    return true;
  }
  return false;
}

Clock::TimePoint Shutdown::nextDeadline() const {
  return phase_ == Phase::kServing ? Clock::TimePoint::max() : deadline_;
}

}  // namespace latentd::supervisor
