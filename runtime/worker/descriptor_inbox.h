#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <stop_token>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd::worker {

// Shared memory whose descriptors the supervisor sent over the inherited socket, until what names them takes it. They
// and the commands come on different ways, and those of frame rings may be sent later, so that either may be the first
// to arrive. It is mapped when it arrives, so that no command stands still for it.
// Owner: the worker. Thread: any. Failure: take() says which id did not come, or is no memory; past kHeldMax the oldest
// is unmapped.
class DescriptorInbox {
 public:
  // One a queued command, and as many again for commands that were cancelled before they took theirs.
  static constexpr size_t kHeldMax = 64;
  // The id of none.
  static constexpr uint64_t kNone = 0;
  // For what is sent before the command that names it: what can be late is the supervisor's thread.
  static constexpr std::chrono::seconds kWait{5};

  // Or why it is lost.
  void put(uint64_t id, StatusOr<UniqueFd> fd);
  // CANCELLED once a stop is requested.
  StatusOr<ShmRegion> take(uint64_t id, Clock::TimePoint deadline, const std::stop_token& cancel = {});
  // Within kWait.
  StatusOr<ShmRegion> take(uint64_t id);
  // For a command that will not take its memory, or has none: it is unmapped, and what is yet to come is not kept.
  void drop(uint64_t id);

 private:
  std::optional<StatusOr<ShmRegion>> find(uint64_t id) REQUIRES(mutex_);

  Mutex mutex_;
  CondVar arrived_;
  std::deque<std::pair<uint64_t, StatusOr<ShmRegion>>> held_ GUARDED_BY(mutex_);
  std::deque<uint64_t> dropped_ GUARDED_BY(mutex_);  // of those that have not come the last kHeldMax
};

}  // namespace latentd::worker
