#include "runtime/base/fault_point.h"

#include <utility>

namespace latentd {

void FaultPoints::arm(std::string_view point, uint64_t countdown, Action action) {
  MutexLock lock(mutex_);
  armed_.insert_or_assign(std::string(point), Armed{countdown, std::move(action)});
}

void FaultPoints::disarm(std::string_view point) {
  MutexLock lock(mutex_);
  armed_.erase(std::string(point));
}

Status FaultPoints::hit(std::string_view point) {
  Action action;
  {
    MutexLock lock(mutex_);
    ++hits_[std::string(point)];
    const auto found = armed_.find(point);
    if (found == armed_.end()) return absl::OkStatus();
    if (found->second.countdown > 0) {
      --found->second.countdown;
      return absl::OkStatus();
    }
    action = found->second.action;
  }
  return action();
}

uint64_t FaultPoints::hits(std::string_view point) const {
  MutexLock lock(mutex_);
  const auto found = hits_.find(point);
  return found == hits_.end() ? 0 : found->second;
}

}  // namespace latentd
