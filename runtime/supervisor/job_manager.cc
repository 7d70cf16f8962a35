#include "runtime/supervisor/job_manager.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/supervisor/limits.h"
#include "runtime/supervisor/state_name.h"
#include "runtime/supervisor/status_proto.h"
#include "runtime/supervisor/timestamps.h"

namespace latentd::supervisor {
namespace {

Clock::TimePoint laterBy(Clock::TimePoint now, std::chrono::milliseconds duration) {
  return Clock::TimePoint::max() - now < duration ? Clock::TimePoint::max() : now + duration;
}

// Longest deadline that is told apart from none: fits the clock with room to spare.
constexpr std::chrono::milliseconds kDeadlineMax = std::chrono::hours(24 * 365 * 10);

}  // namespace

JobManager::JobManager(Deps deps)
    : deps_(std::move(deps)),
      log_(getLogger("jobs")),
      queue_(deps_.clock, deps_.topology.queue.length_max, deps_.topology.queue.aging),
      table_(deps_.clock, {deps_.topology.limits.jobs_kept, deps_.topology.limits.job_retention},
             deps_.topology.stageNames()),
      traces_(deps_.topology, deps_.clock),
      estimate_(deps_.topology.stages.size()),
      dispatcher_(deps_.topology, deps_.clock, deps_.sink, *this) {}

// ---- what the API asks ----------------------------------------------------------------------------------------

Status JobManager::admissible(const v1::SubmitRequest& request) {
  const auto reject = [&](const char* reason, Status status) {
    deps_.metrics.rejected.with(reason).Increment();
    return status;
  };
  if (closed_) return reject("draining", absl::UnavailableError(*closed_));
  if (!limits_) return reject("not_ready", absl::UnavailableError("the model is still loading; try again later"));
  if (const Status valid = validateSubmission(request); !valid.ok()) return reject("invalid", valid);
  return absl::OkStatus();
}

StatusOr<v1::Job> JobManager::submit(const v1::SubmitRequest& request) {
  if (!request.request_id().empty()) {
    if (const JobRecord* earlier = table_.findByRequest(request.request_id())) return snapshot(*earlier);
  }
  LATENTD_RETURN_IF_ERROR(admissible(request));
  StatusOr<v1::JobParameters> parameters = effectiveParameters(request.parameters(), *limits_, deps_.random());
  if (!parameters.ok()) {
    deps_.metrics.rejected.with("invalid").Increment();
    return parameters.status();
  }
  expire();
  const JobId id = newId();
  const StatusOr<JobQueue::Place> place = queue_.push(id, request.priority());
  if (!place.ok()) {
    deps_.metrics.rejected.with("queue_full").Increment();
    return place.status();
  }
  JobRecord& record = table_.create(id, *std::move(parameters), request.priority(), request.request_id());
  record.job.set_retries(request.retries());
  traces_.onSubmitted(id);
  const auto deadline =
      request.has_deadline() ? toMilliseconds(request.deadline(), kDeadlineMax) : deps_.topology.deadlines.job;
  Timing& timing = timings_[id];
  if (request.has_stall_timeout()) timing.stall_timeout = toMilliseconds(request.stall_timeout(), kDeadlineMax);
  timing.deadline = laterBy(deps_.clock.now(), deadline);
  timing.place = *place;
  timing.paces.resize(deps_.topology.stages.size());
  job_deadlines_.emplace(timing.deadline, id);
  deps_.metrics.submitted.Increment();
  log_->info("job {} queued: {}x{}, {} frames, {} steps, seed {}", id, record.job.parameters().width(),
             record.job.parameters().height(), record.job.parameters().frames(), record.job.parameters().steps(),
             record.job.parameters().seed());
  pump();
  // The job may be running by now; a failed output may even have ended it, but nothing has expired since.
  return snapshot(*table_.find(id));
}

JobId JobManager::newId() {
  while (true) {
    JobId id = fmt::format("{:012x}", deps_.random() >> 16);
    if (table_.find(id) == nullptr && !dispatcher_.holds(id)) return id;
  }
}

StatusOr<JobRecord*> JobManager::lookUp(const JobId& id) {
  JobRecord* record = table_.find(id);
  if (record == nullptr) return absl::NotFoundError(fmt::format("there is no job \"{}\" (or no longer)", id));
  return record;
}

StatusOr<v1::Job> JobManager::get(const JobId& id) {
  LATENTD_ASSIGN_OR_RETURN(const JobRecord* record, lookUp(id));
  return snapshot(*record);
}

StatusOr<v1::ListJobsResponse> JobManager::list(const v1::ListJobsRequest& request) {
  return table_.list(request, [this](const JobRecord& record, v1::Job& job) { decorate(record, job); });
}

StatusOr<v1::Job> JobManager::cancel(const JobId& id, const std::string& reason) {
  LATENTD_ASSIGN_OR_RETURN(JobRecord * record, lookUp(id));
  const v1::JobState state = record->job.state();
  if (state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED) {
    return absl::FailedPreconditionError(fmt::format("job {} has already ended: it {}", id, stateName(state)));
  }
  if (state == v1::JOB_STATE_QUEUED) {
    queue_.remove(id);
    queue_moved_ = true;
    finish(*record, v1::JOB_STATE_CANCELLED, absl::CancelledError(reason + ", while queued"));
  } else if (state == v1::JOB_STATE_RUNNING) {
    Timing& timing = timings_[id];
    timing.cancel_time = deps_.clock.now();
    const std::string where = dispatcher_.describeProgress(id);
    for (const v1::StageProgress& stage : record->job.stages()) {
      if (stage.has_start_time() && !stage.has_finish_time()) timing.cancel_stage = stage.stage();
    }
    table_.transition(*record, v1::JOB_STATE_CANCELLING);
    notify(*record);
    // A failure that was kept back ends it too: whoever cancels has what they want.
    dispatcher_.end(id, absl::CancelledError(fmt::format("{}, in {}", reason, where)));
  }
  const v1::Job answer = snapshot(**lookUp(id));
  pump();
  return answer;
}

StatusOr<std::unique_ptr<JobService::Watch>> JobManager::watch(const JobId& id, JobService::WatchCallback callback) {
  LATENTD_ASSIGN_OR_RETURN(const JobRecord* record, lookUp(id));
  callback(snapshot(*record));
  std::unique_ptr<JobService::Watch> handle = watchers_.add(id, std::move(callback));
  if (isTerminal(record->job.state())) watchers_.drop(id);
  return handle;
}

StatusOr<ResultFile> JobManager::openResult(const JobId& id) {
  LATENTD_ASSIGN_OR_RETURN(const JobRecord* record, lookUp(id));
  if (record->job.state() != v1::JOB_STATE_SUCCEEDED) {
    return absl::FailedPreconditionError(
        fmt::format("job {} has no result: it is {}", id, stateName(record->job.state())));
  }
  ResultFile result;
  result.fd.reset(open(record->result_path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!result.fd.valid() || fstat(result.fd.get(), &info) != 0) {
    if (errno == ENOENT) {
      return absl::NotFoundError(
          fmt::format("the result of job {} was dropped from the spool (spool.bytes_max, "
                      "spool.retention)",
                      id));
    }
    return errnoStatus(errno, "open the result of job " + id);
  }
  result.bytes = static_cast<uint64_t>(info.st_size);
  result.format = record->job.parameters().format();
  return result;
}

Status JobManager::remove(const JobId& id) {
  LATENTD_RETURN_IF_ERROR(table_.remove(id));
  forget(id);
  return absl::OkStatus();
}

StatusOr<std::vector<v1::TraceTrack>> JobManager::trace(const JobId& id) {
  LATENTD_RETURN_IF_ERROR(lookUp(id).status());
  return traces_.find(id);
}

// ---- life -----------------------------------------------------------------------------------------------------

void JobManager::cancelQueued(const std::string& reason) {
  for (const JobId& id : table_.unfinishedJobs()) {
    const JobRecord* record = table_.find(id);
    if (record != nullptr && record->job.state() == v1::JOB_STATE_QUEUED) cancel(id, reason).IgnoreError();
  }
}

void JobManager::cancelAll(const std::string& reason) {
  cancelQueued(reason);
  for (const JobId& id : table_.unfinishedJobs())
    cancel(id, reason).IgnoreError();
}

void JobManager::pump() {
  dispatcher_.pump();
  if (std::exchange(queue_moved_, false)) notifyWatched(v1::JOB_STATE_QUEUED);
  if (std::exchange(groups_moved_, false)) notifyWatched(v1::JOB_STATE_RUNNING);
  countJobs();
}

void JobManager::countJobs() {
  deps_.metrics.queue_depth.Set(static_cast<double>(queue_.size()));
  deps_.metrics.running.Set(static_cast<double>(table_.unfinished() - queue_.size()));
}

v1::Job JobManager::snapshot(const JobRecord& record) const {
  v1::Job job = record.job;
  decorate(record, job);
  return job;
}

void JobManager::decorate(const JobRecord& record, v1::Job& job) const {
  if (job.state() == v1::JOB_STATE_QUEUED) job.set_queue_position(queue_.position(job.id()));
  if (job.state() == v1::JOB_STATE_SUCCEEDED) job.set_result_available(access(record.result_path.c_str(), R_OK) == 0);
  if (job.state() == v1::JOB_STATE_RUNNING) {
    for (size_t place = 0; place < deps_.topology.stages.size(); ++place) {
      if (!waits(job, place)) continue;
      v1::StageProgress& stage = *job.mutable_stages(static_cast<int>(place));
      stage.set_waiting(true);
      stage.set_wait_reason(dispatcher_.waitReason(job.id(), place));
    }
    if (const auto left = estimate_.remaining(job, timings_.at(job.id()).paces, deps_.clock.wallNow()))
      *job.mutable_remaining() = toDuration(*left);
  }
}

bool JobManager::waits(const v1::Job& job, size_t place) const {
  if (job.stages(static_cast<int>(place)).has_compute_start_time()) return false;
  const std::vector<config::LinkSpec>& links = deps_.topology.links;
  return std::all_of(links.begin(), links.end(), [&](const config::LinkSpec& link) {
    return link.to != place || job.stages(static_cast<int>(link.from)).has_finish_time();
  });
}

void JobManager::notify(const JobRecord& record) {
  if (watchers_.watched(record.job.id())) watchers_.notify(record.job.id(), snapshot(record));
}

void JobManager::notifyWatched(v1::JobState state) {
  for (const JobId& id : watchers_.jobs()) {
    const JobRecord* record = table_.find(id);
    if (record != nullptr && record->job.state() == state) notify(*record);
  }
}

Clock::TimePoint JobManager::nextDeadline() const {
  Clock::TimePoint next = std::min(dispatcher_.nextDeadline(), table_.nextExpiry());
  if (!job_deadlines_.empty()) next = std::min(next, job_deadlines_.begin()->first);
  return next;
}

void JobManager::onTimer() {
  checkDeadlines();
  dispatcher_.onTimer();
  expire();
  pump();
}

void JobManager::checkDeadlines() {
  while (!job_deadlines_.empty() && job_deadlines_.begin()->first <= deps_.clock.now()) {
    const JobId id = job_deadlines_.begin()->second;
    job_deadlines_.erase(job_deadlines_.begin());
    JobRecord& record = *table_.find(id);
    const double seconds = std::chrono::duration<double>(deps_.clock.now() - record.created).count();
    if (record.job.state() == v1::JOB_STATE_QUEUED) {
      queue_.remove(id);
      queue_moved_ = true;
      finish(record, v1::JOB_STATE_FAILED,
             absl::DeadlineExceededError(fmt::format("still queued {:g} s after submission (deadline)", seconds)));
    } else {
      dispatcher_.end(id, absl::DeadlineExceededError(fmt::format("not finished {:g} s after submission (deadline; {})",
                                                                  seconds, dispatcher_.describeProgress(id))));
    }
  }
}

void JobManager::expire() {
  for (const JobId& id : table_.expire())
    forget(id);
}

void JobManager::forget(const JobId& id) {
  deps_.outputs.remove(id);
  traces_.remove(id);
}

void JobManager::finish(JobRecord& record, v1::JobState state, const Status& status) {
  table_.transition(record, state);
  if (!status.ok()) *record.job.mutable_error() = toProto(status);
  recordEnd(record, status);
  const JobId id = record.job.id();
  const auto timing = timings_.find(id);
  job_deadlines_.erase({timing->second.deadline, id});
  timings_.erase(timing);
  // Whoever hears of the end may ask for the metrics next.
  countJobs();
  notify(record);
  watchers_.drop(id);
}

void JobManager::recordEnd(const JobRecord& record, const Status& status) {
  const v1::JobState state = record.job.state();
  const std::string result = state == v1::JOB_STATE_SUCCEEDED   ? "succeeded"
                             : state == v1::JOB_STATE_CANCELLED ? "cancelled"
                                                                : "failed";
  const double seconds = std::chrono::duration<double>(record.finished - record.created).count();
  deps_.metrics.ended.with(result).Increment();
  deps_.metrics.duration.with(result).Observe(seconds);
  const Timing& timing = timings_[record.job.id()];
  if (timing.cancel_time && !timing.cancel_stage.empty()) {
    deps_.metrics.cancel.with(timing.cancel_stage)
        .Observe(std::chrono::duration<double>(record.finished - *timing.cancel_time).count());
  }
  if (state == v1::JOB_STATE_FAILED) {
    log_->warn("job {} failed after {:.3f} s: {}", record.job.id(), seconds, messageOf(status));
  } else {
    log_->info("job {} {} after {:.3f} s", record.job.id(), result, seconds);
  }
}

}  // namespace latentd::supervisor
