#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::testing {

// A supervisor without workers: jobs move when the test says so. Keeps JobService's promises about codes, order of
// List, repeated request ids and watches. Thread: any; watch callbacks run under its lock, so a destroyed Watch is
// silent.
class FakeJobService final : public supervisor::JobService {
 public:
  struct Options {
    size_t queue_max = 1000;
    uint32_t prompt_bytes_max = 100'000;
  };

  explicit FakeJobService(Options options) : options_(options) {}
  FakeJobService() : FakeJobService(Options()) {}

  // ---- JobService ----
  StatusOr<v1::Job> submit(const v1::SubmitRequest& request) override;
  StatusOr<v1::Job> get(const JobId& id) override;
  StatusOr<v1::ListJobsResponse> list(const v1::ListJobsRequest& request) override;
  StatusOr<v1::Job> cancel(const JobId& id) override;
  StatusOr<std::unique_ptr<Watch>> watch(const JobId& id, WatchCallback callback) override;
  StatusOr<supervisor::ResultFile> openResult(const JobId& id) override;
  Status remove(const JobId& id) override;
  // Of a finished job: a hand-off from text rank 0 to both ranks of denoise.
  StatusOr<std::vector<v1::TraceTrack>> trace(const JobId& id) override;
  v1::Topology topology() override;
  v1::GetEdgesResponse edges() override;
  // Of denoise: rank 1 waits for rank 0, as it did when the epoch before failed.
  StatusOr<v1::FlightRecords> flightRecords(const std::string& group) override;
  uint32_t drain(std::chrono::milliseconds deadline) override;
  Status live() override { return absl::OkStatus(); }
  Status ready() override;

  // ---- the test's side ----
  // Queued -> running, in the stage; or one more step of it.
  void progress(const JobId& id, const std::string& stage, uint32_t step, uint32_t steps);
  // bytes_left: of the result, where its file was cut off.
  void succeed(const JobId& id, std::string result, size_t bytes_left = SIZE_MAX);
  void fail(const JobId& id, const Status& error);
  // Cancelling -> cancelled.
  void finishCancel(const JobId& id);
  void setReady(Status status);

  std::vector<v1::Job> jobs();
  // Somebody watches it.
  bool watched(const JobId& id);
  size_t openWatches();
  // False when there are still more at the deadline.
  bool waitForWatches(size_t count, std::chrono::milliseconds timeout);
  std::chrono::milliseconds drainDeadline();

 private:
  class FakeWatch;
  struct Entry {
    v1::Job job;
    std::string request_id;
    std::string result;
    size_t result_bytes_claimed = 0;
  };

  StatusOr<Entry*> find(const JobId& id) REQUIRES(mutex_);
  void change(const JobId& id, const std::function<void(Entry&)>& edit);
  void notify(const Entry& entry) REQUIRES(mutex_);
  void renumberQueue() REQUIRES(mutex_);
  Status admit(const v1::SubmitRequest& request) REQUIRES(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar watches_changed_;
  std::deque<Entry> entries_ GUARDED_BY(mutex_);  // oldest first
  std::map<uint64_t, std::pair<JobId, WatchCallback>> watches_ GUARDED_BY(mutex_);
  uint64_t next_watch_ GUARDED_BY(mutex_) = 0;
  uint64_t next_job_ GUARDED_BY(mutex_) = 1;
  bool draining_ GUARDED_BY(mutex_) = false;
  std::chrono::milliseconds drain_deadline_ GUARDED_BY(mutex_){0};
  Status ready_ GUARDED_BY(mutex_);
};

}  // namespace latentd::testing
