#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/clock.h"
#include "runtime/config/topology.h"

namespace latentd::supervisor {

// When a group that failed is started again: after a delay that doubles with each failure in a row, within the
// topology's bounds. A group that served for long enough starts from the shortest delay again.
// Owner: Group. Thread: the supervisor's loop.
class RestartPolicy {
 public:
  RestartPolicy(const config::RestartSpec& spec, const Clock& clock) : spec_(spec), clock_(clock) {}

  void served() { serving_since_ = clock_.now(); }
  // The delay before the next start; nothing when the group has failed to start too often in a row.
  std::optional<std::chrono::milliseconds> failed();

 private:
  const config::RestartSpec& spec_;
  const Clock& clock_;
  std::optional<Clock::TimePoint> serving_since_;  // absent unless it serves
  std::chrono::milliseconds delay_{};
  uint32_t failures_ = 0;  // starts in a row that did not lead to serving
};

}  // namespace latentd::supervisor
