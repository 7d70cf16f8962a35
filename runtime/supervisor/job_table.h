#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "proto/api.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::supervisor {

// A job as it is kept. `job` is what users see, except queue position and result availability, which are looked up when
// it is shown.
struct JobRecord {
  v1::Job job;
  uint64_t order = 0;         // of creation
  uint64_t finish_order = 0;  // of ending; set with a terminal state
  std::string request_id;
  std::string result_path;  // in the spool; set with SUCCEEDED
  uint32_t runs = 0;        // that were begun and handed back
  Clock::TimePoint created;
  Clock::TimePoint started;
  Clock::TimePoint finished;
};

// Whether a job may go from one state to the other; every state change is checked against it.
bool canFollow(v1::JobState from, v1::JobState to);
bool isTerminal(v1::JobState state);

// All jobs of the daemon: unfinished ones for as long as they live, finished ones within count and age.
// Owner: JobManager. Thread: the supervisor's loop.
// States of a job: QUEUED -> RUNNING -> SUCCEEDED | FAILED; QUEUED -> CANCELLED | FAILED; RUNNING -> CANCELLING ->
// CANCELLED; RUNNING -> QUEUED when it is handed back. An impossible change aborts.
class JobTable {
 public:
  struct Retention {
    uint32_t finished_max = 0;
    std::chrono::milliseconds age_max{};
  };
  // Fills in what is not stored.
  using Decorate = std::function<void(const JobRecord&, v1::Job&)>;

  // stages: group names in pipeline order.
  JobTable(const Clock& clock, Retention retention, std::vector<std::string> stages);

  // A new QUEUED job. The id is new; a request id, if any, is not taken.
  JobRecord& create(const JobId& id, v1::JobParameters parameters, int32_t priority, std::string request_id);
  // Null if unknown. Pointers stay valid until the job is removed or expires.
  JobRecord* find(const JobId& id);
  JobRecord* findByRequest(const std::string& request_id);

  // Sets the state and its time.
  void transition(JobRecord& record, v1::JobState to);
  // Why a job is handed back: lost to a worker that died under it, or displaced by the loss of a group that it was not
  // running on.
  enum class Requeue { kLost, kDisplaced };
  // Back to QUEUED, as if nothing of it had run.
  void requeue(JobRecord& record, const Status& cause, Requeue why);
  // Forgets a finished job. NOT_FOUND, or FAILED_PRECONDITION while it has not ended.
  Status remove(const JobId& id);
  // Forgets the finished jobs beyond the retention, oldest first, and says which.
  std::vector<JobId> expire();
  // When expire() has work next; the latest time there is if never.
  Clock::TimePoint nextExpiry() const;

  // Newest first. INVALID_ARGUMENT for a bad page size or token.
  StatusOr<v1::ListJobsResponse> list(const v1::ListJobsRequest& request, const Decorate& decorate) const;
  size_t size() const { return by_id_.size(); }
  size_t unfinished() const { return by_id_.size() - finished_.size(); }
  // Ids of all jobs in QUEUED, RUNNING or CANCELLING, oldest first.
  std::vector<JobId> unfinishedJobs() const;

 private:
  void erase(JobRecord& record);

  const Clock& clock_;
  const Retention retention_;
  const std::vector<std::string> stages_;
  uint64_t next_order_ = 1;
  uint64_t next_finish_order_ = 1;
  std::unordered_map<JobId, std::unique_ptr<JobRecord>> by_id_;
  std::unordered_map<std::string, JobRecord*> by_request_;
  std::map<uint64_t, JobRecord*> by_order_;
  std::map<uint64_t, JobRecord*> finished_;  // by finish_order
};

}  // namespace latentd::supervisor
