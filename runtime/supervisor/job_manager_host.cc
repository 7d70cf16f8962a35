// What the dispatcher asks and tells of jobs.

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/supervisor/job_manager.h"
#include "runtime/supervisor/timestamps.h"

namespace latentd::supervisor {
namespace {

// Losses of groups that a job may be no part of before it is suspected itself. More in a row than any operator's
// clean-up needs, and fewer than restart.failures_max by default.
constexpr uint32_t kDisplacementsMax = 8;

}  // namespace

std::optional<JobSpec> JobManager::takeNextJob() {
  const std::optional<JobId> id = queue_.pop();
  if (!id) return std::nullopt;
  queue_moved_ = true;
  JobRecord& record = *table_.find(*id);
  table_.transition(record, v1::JOB_STATE_RUNNING);
  traces_.onAdmitted(*id);
  notify(record);
  return JobSpec{.id = *id,
                 .parameters = record.job.parameters(),
                 .stall_timeout = timings_[*id].stall_timeout,
                 .may_restart = record.job.restarts() < record.job.retries(),
                 .may_displace = record.job.displacements() < kDisplacementsMax};
}

StatusOr<std::unique_ptr<media::Output>> JobManager::openOutput(const JobSpec& job) {
  // Both may be called from any thread, and after the job ended: the dispatcher then ignores it. This object outlives
  // the loop's tasks, which is where they go.
  const auto tell = [this, id = job.id, run = table_.find(job.id)->runs](std::function<void(const JobId&)> act) {
    deps_.post([this, id, run, act = std::move(act)] {
      const JobRecord* record = table_.find(id);
      // The output of a run that was lost may tell of itself when the next run has begun.
      if (record == nullptr || record->runs != run) return;
      act(id);
      pump();
    });
  };
  auto opened = [this, tell](const Status& status) {
    tell([this, status](const JobId& id) { dispatcher_.onOutputOpened(id, status); });
  };
  auto done = [this, tell](StatusOr<media::OutputResult> result) {
    tell([this, result = std::move(result)](const JobId& id) { dispatcher_.onOutputDone(id, result); });
  };
  return deps_.outputs.open(job.id, job.parameters, std::move(opened), std::move(done));
}

v1::StageProgress* JobManager::stageOf(const JobId& job, GroupIndex group) {
  JobRecord* record = table_.find(job);
  if (record == nullptr) return nullptr;
  return record->job.mutable_stages(static_cast<int>(deps_.topology.groups[group.value].place));
}

void JobManager::onCommandSent(const JobId& job, WorkerId worker) {
  traces_.onCommandSent(job, worker);
  if (worker.rank != Rank(0)) return;  // it has told of the command
  const std::string& group = deps_.topology.groups[worker.group.value].name;
  deps_.metrics.stage_commands.with(deps_.topology.stageOf(worker.group.value).name, group).Increment();
  stageOf(job, worker.group)->set_group(group);
}

void JobManager::onStageStarted(const JobId& job, GroupIndex group) {
  *stageOf(job, group)->mutable_start_time() = toTimestamp(deps_.clock.wallNow());
  notify(*table_.find(job));
}

void JobManager::onStageComputes(const JobId& job, GroupIndex group) {
  *stageOf(job, group)->mutable_compute_start_time() = toTimestamp(deps_.clock.wallNow());
  const JobRecord& record = *table_.find(job);
  // Of a job that is run once more the first wait is what the queue is to blame for.
  if (!std::exchange(timings_[job].begun, true)) {
    deps_.metrics.queue_wait.Observe(std::chrono::duration<double>(deps_.clock.now() - record.created).count());
  }
  notify(record);
}

void JobManager::onStageProgress(const JobId& job, GroupIndex group, uint32_t step, uint32_t steps) {
  v1::StageProgress& stage = *stageOf(job, group);
  stage.set_step(step);
  stage.set_steps(steps);
  const double now = toSeconds(deps_.clock.wallNow());
  const double start = stage.has_compute_start_time() ? toSeconds(stage.compute_start_time()) : now;
  timings_[job].paces[deps_.topology.groups[group.value].place].note(step, now, start);
  notify(*table_.find(job));
}

void JobManager::onStageFailed(const JobId&, GroupIndex group, const Status& status) {
  onGroupsMoved();
  const std::string reason(fromAbsl(absl::StatusCodeToString(status.code())));
  deps_.metrics.stage_failures.with(deps_.topology.stageOf(group.value).name, reason).Increment();
}

void JobManager::onStageDone(const JobId& job, GroupIndex group, const internal::v1::StageTimings& timings) {
  onGroupsMoved();
  const config::GroupSpec& spec = deps_.topology.groups[group.value];
  const std::string& name = deps_.topology.stageOf(group.value).name;
  deps_.metrics.stage.with(name).Observe(timings.compute_seconds());
  deps_.metrics.input_wait.with(name).Observe(timings.input_wait_seconds());
  deps_.metrics.publish.with(name).Observe(timings.publish_seconds());
  const bool denoises = spec.stage.find("denoise") != std::string::npos;
  if (denoises) {
    for (const double seconds : timings.step_seconds())
      deps_.metrics.denoise_step.Observe(seconds);
  }
  v1::StageProgress* stage = stageOf(job, group);
  if (stage == nullptr) return;  // a failed job may be forgotten before its last command ends
  *stage->mutable_finish_time() = toTimestamp(deps_.clock.wallNow());
  *stage->mutable_compute() = secondsToDuration(timings.compute_seconds());
  *stage->mutable_input_wait() = secondsToDuration(timings.input_wait_seconds());
  *stage->mutable_publish() = secondsToDuration(timings.publish_seconds());
  const JobRecord& record = *table_.find(job);
  estimate_.observe(spec.place, record.job.parameters(), stage->steps(), timings.compute_seconds());
  if (!isTerminal(record.job.state())) notify(record);
}

void JobManager::onJobEnded(const JobId& job, StatusOr<media::OutputResult> result) {
  JobRecord& record = *table_.find(job);
  if (result.ok()) {
    record.result_path = result->path;
    record.job.set_result_bytes(result->bytes);
    finish(record, v1::JOB_STATE_SUCCEEDED, absl::OkStatus());
  } else if (record.job.state() == v1::JOB_STATE_CANCELLING) {
    finish(record, v1::JOB_STATE_CANCELLED, result.status());
  } else {
    finish(record, v1::JOB_STATE_FAILED, result.status());
  }
}

void JobManager::onJobLost(const JobId& job, const Status& cause) {
  deps_.metrics.retried.Increment();
  requeue(job, cause, JobTable::Requeue::kLost);
}

void JobManager::onJobDisplaced(const JobId& job, const Status& cause) {
  deps_.metrics.displaced.Increment();
  requeue(job, cause, JobTable::Requeue::kDisplaced);
}

void JobManager::requeue(const JobId& id, const Status& cause, JobTable::Requeue why) {
  JobRecord& record = *table_.find(id);
  table_.requeue(record, cause, why);
  Timing& timing = timings_[id];
  timing.paces.assign(timing.paces.size(), {});
  queue_.restore(id, timing.place);
  queue_moved_ = true;
  log_->warn("job {} is queued again at its old place: {}", id, messageOf(cause));
  notify(record);
}

std::tuple<size_t, size_t, uint32_t> JobManager::pipelinePlace(const v1::EdgeTransfer& transfer) const {
  const std::vector<config::EdgeSpec>& edges = deps_.topology.edges;
  const auto edge = std::find_if(edges.begin(), edges.end(),
                                 [&](const config::EdgeSpec& spec) { return spec.name == transfer.edge(); });
  const config::LinkSpec& link = deps_.topology.links[edge->link];
  return {link.from, link.to, transfer.rank()};
}

void JobManager::addTransfer(const JobId& job, EdgeIndex edge, Rank producer, const internal::v1::TransferDone& done) {
  JobRecord* record = table_.find(job);
  if (record == nullptr) return;
  auto& transfers = *record->job.mutable_transfers();
  v1::EdgeTransfer& transfer = *transfers.Add();
  transfer.set_edge(deps_.topology.edges[edge.value].name);
  transfer.set_rank(producer.value);
  transfer.set_bytes(done.bytes());
  *transfer.mutable_duration() = secondsToDuration(done.handoff_seconds());
  // They are told as they end; people follow the pipeline, in whose order the others are.
  const auto place = pipelinePlace(transfer);
  for (int i = transfers.size() - 1; i > 0 && place < pipelinePlace(transfers[i - 1]); --i)
    transfers.SwapElements(i - 1, i);
}

}  // namespace latentd::supervisor
