#include "runtime/supervisor/job_queue.h"

#include <iterator>
#include <string>

#include "runtime/base/check.h"

namespace latentd::supervisor {

JobQueue::JobQueue(const Clock& clock, size_t length_max, std::chrono::milliseconds aging)
    : clock_(clock), length_max_(length_max), aging_(aging) {}

StatusOr<JobQueue::Place> JobQueue::push(const JobId& id, int32_t priority) {
  if (order_.size() >= length_max_) {
    return absl::ResourceExhaustedError("the queue is full: " + std::to_string(length_max_) +
                                        " jobs wait (queue.length_max); try again later");
  }
  const int64_t arrival_ns = clock_.now().time_since_epoch().count();
  const int64_t aging_ns = std::chrono::nanoseconds(aging_).count();
  const Place place{.aged_arrival_ns = arrival_ns - priority * aging_ns, .arrival = arrivals_++};
  restore(id, place);
  return place;
}

void JobQueue::restore(const JobId& id, const Place& place) {
  LATENTD_CHECK(places_.emplace(id, place).second, "a job is queued once");
  order_.emplace(place, id);
}

std::optional<JobId> JobQueue::pop() {
  if (order_.empty()) return std::nullopt;
  JobId id = std::move(order_.begin()->second);
  order_.erase(order_.begin());
  places_.erase(id);
  return id;
}

bool JobQueue::remove(const JobId& id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return false;
  order_.erase(found->second);
  places_.erase(found);
  return true;
}

uint32_t JobQueue::position(const JobId& id) const {
  const auto found = places_.find(id);
  if (found == places_.end()) return 0;
  // Counted from the end: the job asked for most often is the one that has just come.
  const auto behind = std::distance(order_.find(found->second), order_.end());
  return static_cast<uint32_t>(order_.size() - behind + 1);
}

}  // namespace latentd::supervisor
