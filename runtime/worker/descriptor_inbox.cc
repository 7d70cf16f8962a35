#include "runtime/worker/descriptor_inbox.h"

#include <algorithm>
#include <string>

namespace latentd::worker {

void DescriptorInbox::put(uint64_t id, UniqueFd fd) {
  MutexLock lock(mutex_);
  if (held_.size() >= kHeldMax) held_.pop_front();
  held_.emplace_back(id, std::move(fd));
  arrived_.notifyAll();
}

UniqueFd DescriptorInbox::find(uint64_t id) {
  const auto found = std::find_if(held_.begin(), held_.end(), [&](const auto& entry) { return entry.first == id; });
  if (found == held_.end()) return UniqueFd();
  UniqueFd fd = std::move(found->second);
  held_.erase(found);
  return fd;
}

StatusOr<UniqueFd> DescriptorInbox::take(uint64_t id, Clock::TimePoint deadline) {
  MutexLock lock(mutex_);
  while (true) {
    UniqueFd fd = find(id);
    if (fd.valid()) return fd;
    if (!arrived_.waitUntil(mutex_, deadline) && std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError("descriptor " + std::to_string(id) +
                                         " did not come over the inherited socket");
    }
  }
}

StatusOr<ShmRegion> DescriptorInbox::takeRegion(uint64_t id) {
  LATENTD_ASSIGN_OR_RETURN(UniqueFd fd, take(id, std::chrono::steady_clock::now() + kWait));
  return ShmRegion::map(std::move(fd), 1);
}

void DescriptorInbox::drop(uint64_t id) {
  MutexLock lock(mutex_);
  find(id);
}

}  // namespace latentd::worker
