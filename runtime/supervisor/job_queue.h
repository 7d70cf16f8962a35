#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::supervisor {

// Jobs that wait for the pipeline. Higher priority first, first come first served within one; waiting for `aging`
// raises a job by one priority. Since every job ages at the same rate, the order of two jobs never changes: a job's
// place is fixed by (arrival - priority * aging), and nothing has to be sorted again as time passes.
// Owner: JobManager. Thread: the supervisor's loop. Failure: RESOURCE_EXHAUSTED when full.
class JobQueue {
 public:
  JobQueue(const Clock& clock, size_t length_max, std::chrono::milliseconds aging);

  // Where a job stands; keeps its meaning while the job is out of the queue.
  struct Place {
    int64_t aged_arrival_ns;
    uint64_t arrival;  // ties: first come first served
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  StatusOr<Place> push(const JobId& id, int32_t priority);
  // Back to the place that it had when it was popped, whatever the queue's length.
  void restore(const JobId& id, const Place& place);
  std::optional<JobId> pop();
  // False if it is not queued.
  bool remove(const JobId& id);
  // 1 is next; 0 when not queued.
  uint32_t position(const JobId& id) const;
  size_t size() const { return order_.size(); }
  bool empty() const { return order_.empty(); }

 private:
  const Clock& clock_;
  const size_t length_max_;
  const std::chrono::milliseconds aging_;
  uint64_t arrivals_ = 0;
  std::map<Place, JobId> order_;
  std::unordered_map<JobId, Place> places_;
};

}  // namespace latentd::supervisor
