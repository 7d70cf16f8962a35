#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "proto/api.pb.h"
#include "runtime/base/mutex.h"
#include "runtime/base/strong_id.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::supervisor {

// Who follows which job. Owner: JobManager. Thread: the supervisor's loop, except the returned handles, which may die
// on any thread: one that died hears nothing more.
class Watchers {
 public:
  // Follows the job; the caller tells it the present state.
  std::unique_ptr<JobService::Watch> add(const JobId& job, JobService::WatchCallback callback);
  bool watched(const JobId& job) const { return watches_.count(job) != 0; }
  void notify(const JobId& job, const v1::Job& snapshot);
  // The job was told its last state.
  void drop(const JobId& job) { watches_.erase(job); }
  // Jobs that somebody follows.
  std::vector<JobId> jobs() const;

 private:
  // Shared by the table and the handle: whichever goes first.
  struct Shared {
    Mutex mutex;
    JobService::WatchCallback callback GUARDED_BY(mutex);  // empty once the handle died
  };
  class Handle;

  std::unordered_map<JobId, std::vector<std::shared_ptr<Shared>>> watches_;
};

}  // namespace latentd::supervisor
