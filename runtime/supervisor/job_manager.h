#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/api.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/media/output.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/command_sink.h"
#include "runtime/supervisor/dispatcher.h"
#include "runtime/supervisor/job_queue.h"
#include "runtime/supervisor/job_service.h"
#include "runtime/supervisor/job_table.h"
#include "runtime/supervisor/job_validation.h"
#include "runtime/supervisor/remaining_estimate.h"
#include "runtime/supervisor/step_pace.h"
#include "runtime/supervisor/trace_store.h"
#include "runtime/supervisor/watchers.h"

namespace latentd::supervisor {

// The jobs' side of the supervisor: from submission to the forgetting of the result.
// Owner: Supervisor. Thread: the supervisor's loop, watch handles excepted.
// States: not ready (no limits are known yet) -> admitting -> closed (draining).
// Failure: a request's error is its caller's; a job's error is kept with the job.
class JobManager final : public DispatcherHost {
 public:
  struct Deps {
    const config::Topology& topology;
    const Clock& clock;
    media::OutputFactory& outputs;
    metrics::JobMetrics& metrics;
    CommandSink& sink;
    std::function<uint64_t()> random;                 // ids and seeds
    std::function<bool(std::function<void()>)> post;  // to the supervisor's loop, from any thread
    std::function<void(GroupIndex, const Status&)> group_unusable;
    std::function<void(GroupIndex, const Status&)> group_suspect;
  };
  explicit JobManager(Deps deps);

  // ---- what the API asks
  StatusOr<v1::Job> submit(const v1::SubmitRequest& request);
  StatusOr<v1::Job> get(const JobId& id);
  StatusOr<v1::ListJobsResponse> list(const v1::ListJobsRequest& request);
  StatusOr<v1::Job> cancel(const JobId& id, const std::string& reason);
  StatusOr<std::unique_ptr<JobService::Watch>> watch(const JobId& id, JobService::WatchCallback callback);
  StatusOr<ResultFile> openResult(const JobId& id);
  Status remove(const JobId& id);
  StatusOr<std::vector<v1::TraceTrack>> trace(const JobId& id);

  // ---- life
  // Every group is ready; submissions are checked against these from now on.
  void setLimits(JobLimits limits) { limits_ = std::move(limits); }
  const std::optional<JobLimits>& limits() const { return limits_; }
  // Stops admission; `reason` is what later submissions are told.
  void close(const std::string& reason) { closed_ = reason; }
  void cancelQueued(const std::string& reason);
  void cancelAll(const std::string& reason);
  size_t unfinished() const { return table_.unfinished(); }
  // Nothing of any job is left in a worker.
  bool idle() const { return table_.unfinished() == 0 && dispatcher_.running() == 0; }

  // ---- the pipeline
  Dispatcher& dispatcher() { return dispatcher_; }
  const Dispatcher& dispatcher() const { return dispatcher_; }
  // A group or an edge came, went or is free: jobs may wait for other reasons now. pump() tells their watchers.
  void onGroupsMoved() { groups_moved_ = true; }
  // After anything that may have freed something or queued something.
  void pump();
  TraceStore& traces() { return traces_; }
  void addTransfer(const JobId& job, EdgeIndex edge, Rank producer, const internal::v1::TransferDone& done);
  Clock::TimePoint nextDeadline() const;
  void onTimer();

  // ---- DispatcherHost
  std::optional<JobSpec> takeNextJob() override;
  StatusOr<std::unique_ptr<media::Output>> openOutput(const JobSpec& job) override;
  void onCommandSent(const JobId& job, WorkerId worker) override;
  void onStageStarted(const JobId& job, GroupIndex group) override;
  void onStageComputes(const JobId& job, GroupIndex group) override;
  void onStageProgress(const JobId& job, GroupIndex group, uint32_t step, uint32_t steps) override;
  void onStageDone(const JobId& job, GroupIndex group, const internal::v1::StageTimings& timings) override;
  void onStageFailed(const JobId& job, GroupIndex group, const Status& status) override;
  void onJobEnded(const JobId& job, StatusOr<media::OutputResult> result) override;
  void onJobLost(const JobId& job, const Status& cause) override;
  void onJobDisplaced(const JobId& job, const Status& cause) override;
  void onGroupUnusable(GroupIndex group, const Status& cause) override { deps_.group_unusable(group, cause); }
  void onGroupSuspect(GroupIndex group, const Status& met) override { deps_.group_suspect(group, met); }

 private:
  struct Timing {
    std::optional<std::chrono::milliseconds> stall_timeout;  // as requested
    Clock::TimePoint deadline;
    JobQueue::Place place{};  // in the queue
    std::optional<Clock::TimePoint> cancel_time;
    std::string cancel_stage;     // where it was when the cancel came
    bool begun = false;           // some stage has computed for it
    std::vector<StepPace> paces;  // by stage, of its present run
  };

  Status admissible(const v1::SubmitRequest& request);
  StatusOr<JobRecord*> lookUp(const JobId& id);
  JobId newId();
  // For the order in which hand-offs are shown: places of the stages, rank of the producer.
  std::tuple<size_t, size_t, uint32_t> pipelinePlace(const v1::EdgeTransfer& transfer) const;
  v1::Job snapshot(const JobRecord& record) const;
  void decorate(const JobRecord& record, v1::Job& job) const;
  void notify(const JobRecord& record);
  void notifyWatched(v1::JobState state);
  void countJobs();
  void finish(JobRecord& record, v1::JobState state, const Status& status);
  void recordEnd(const JobRecord& record, const Status& status);
  void expire();
  // What is kept of a job beside the table.
  void forget(const JobId& id);
  void requeue(const JobId& id, const Status& cause, JobTable::Requeue why);
  // Whether the stage has all it needs but its group's attention.
  bool waits(const v1::Job& job, size_t place) const;
  v1::StageProgress* stageOf(const JobId& job, GroupIndex group);
  void checkDeadlines();

  Deps deps_;
  Logger log_;
  JobQueue queue_;
  JobTable table_;
  Watchers watchers_;
  TraceStore traces_;
  RemainingEstimate estimate_;
  std::optional<JobLimits> limits_;
  std::optional<std::string> closed_;
  std::unordered_map<JobId, Timing> timings_;                   // of unfinished jobs
  std::set<std::pair<Clock::TimePoint, JobId>> job_deadlines_;  // of unfinished jobs
  bool queue_moved_ = false;
  bool groups_moved_ = false;
  Dispatcher dispatcher_;  // last: it calls this object
};

}  // namespace latentd::supervisor
