#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd::worker {

// Descriptors that the supervisor sent over the inherited socket, until the command that names them takes them. They
// and the commands come on different ways, so that a command may be the first to arrive.
// Owner: the worker. Thread: any. Failure: take() says which id did not come; past kHeldMax the oldest is closed.
class DescriptorInbox {
 public:
  // One a queued command, and as many again for commands that were cancelled before they took theirs.
  static constexpr size_t kHeldMax = 64;
  // They are sent before what names them; what can be late is the supervisor's thread.
  static constexpr std::chrono::seconds kWait{5};

  void put(uint64_t id, UniqueFd fd);
  StatusOr<UniqueFd> take(uint64_t id, Clock::TimePoint deadline);
  // The memory behind one, taken within kWait.
  StatusOr<ShmRegion> takeRegion(uint64_t id);
  // For a command that will not take its descriptor.
  void drop(uint64_t id);

 private:
  UniqueFd find(uint64_t id) REQUIRES(mutex_);

  Mutex mutex_;
  CondVar arrived_;
  std::deque<std::pair<uint64_t, UniqueFd>> held_ GUARDED_BY(mutex_);
};

}  // namespace latentd::worker
