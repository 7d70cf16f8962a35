#include "runtime/supervisor/watchers.h"

#include <utility>

namespace latentd::supervisor {

class Watchers::Handle final : public JobService::Watch {
 public:
  explicit Handle(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  // Waits for a callback in progress: it only hands a job over, and must not destroy its own handle.
  ~Handle() override {
    const MutexLock held(shared_->mutex);
    shared_->callback = nullptr;
  }

 private:
  std::shared_ptr<Shared> shared_;
};

std::unique_ptr<JobService::Watch> Watchers::add(const JobId& job, JobService::WatchCallback callback) {
  auto shared = std::make_shared<Shared>();
  {
    const MutexLock held(shared->mutex);
    shared->callback = std::move(callback);
  }
  watches_[job].push_back(shared);
  return std::make_unique<Handle>(std::move(shared));
}

void Watchers::notify(const JobId& job, const v1::Job& snapshot) {
  const auto found = watches_.find(job);
  if (found == watches_.end()) return;
  std::erase_if(found->second, [&](const std::shared_ptr<Shared>& shared) {
    const MutexLock held(shared->mutex);
    if (!shared->callback) return true;
    shared->callback(snapshot);
    return false;
  });
  if (found->second.empty()) watches_.erase(found);
}

std::vector<JobId> Watchers::jobs() const {
  std::vector<JobId> ids;
  ids.reserve(watches_.size());
  for (const auto& [id, watches] : watches_)
    ids.push_back(id);
  return ids;
}

}  // namespace latentd::supervisor
