#include "runtime/worker/descriptor_inbox.h"

#include <algorithm>
#include <string>

namespace latentd::worker {

void DescriptorInbox::put(uint64_t id, StatusOr<UniqueFd> fd) {
  StatusOr<ShmRegion> region = fd.ok() ? ShmRegion::map(*std::move(fd), 1) : fd.status();
  MutexLock lock(mutex_);
  if (std::erase(dropped_, id) > 0) return;
  if (held_.size() >= kHeldMax) held_.pop_front();
  held_.emplace_back(id, std::move(region));
  arrived_.notifyAll();
}

std::optional<StatusOr<ShmRegion>> DescriptorInbox::find(uint64_t id) {
  const auto found = std::find_if(held_.begin(), held_.end(), [&](const auto& entry) { return entry.first == id; });
  if (found == held_.end()) return std::nullopt;
  std::optional<StatusOr<ShmRegion>> region(std::move(found->second));
  held_.erase(found);
  return region;
}

StatusOr<ShmRegion> DescriptorInbox::take(uint64_t id, Clock::TimePoint deadline, const std::stop_token& cancel) {
  // Not under the lock, which a stop that was requested before would take here.
  const std::stop_callback wake(cancel, [this] {
    MutexLock lock(mutex_);
    arrived_.notifyAll();
  });
  MutexLock lock(mutex_);
  while (true) {
    if (std::optional<StatusOr<ShmRegion>> region = find(id)) return *std::move(region);
    if (cancel.stop_requested()) return absl::CancelledError("the job was cancelled");
    // Before the wait: one without time sleeps all the same, some 100 us.
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError("descriptor " + std::to_string(id) +
                                         " did not come over the inherited socket");
    }
    arrived_.waitUntil(mutex_, deadline);
  }
}

StatusOr<ShmRegion> DescriptorInbox::take(uint64_t id) { return take(id, std::chrono::steady_clock::now() + kWait); }

void DescriptorInbox::drop(uint64_t id) {
  MutexLock lock(mutex_);
  if (id == kNone || find(id)) return;
  if (dropped_.size() >= kHeldMax) dropped_.pop_front();
  dropped_.push_back(id);
}

}  // namespace latentd::worker
