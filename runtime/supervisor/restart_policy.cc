#include "runtime/supervisor/restart_policy.h"

#include <algorithm>
#include <utility>

namespace latentd::supervisor {

std::optional<std::chrono::milliseconds> RestartPolicy::failed() {
  const std::optional<Clock::TimePoint> served = std::exchange(serving_since_, std::nullopt);
  if (served && clock_.now() - *served >= spec_.stable_after) delay_ = {};
  failures_ = served ? 0 : failures_ + 1;
  if (spec_.failures_max != 0 && failures_ >= spec_.failures_max) return std::nullopt;
  delay_ = delay_.count() == 0 ? spec_.backoff_min : std::min(delay_ * 2, spec_.backoff_max);
  return delay_;
}

}  // namespace latentd::supervisor
