// What workers, outputs and time tell the dispatcher.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/supervisor/dispatcher.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

// ---- workers --------------------------------------------------------------------------------------------------

StageRun* Dispatcher::openStage(JobRun* run, WorkerId worker) {
  if (run == nullptr) return nullptr;
  StageRun& stage = stageOf(*run, worker.group);
  if (stage.group != worker.group || stage.state != StageRun::State::kDispatched) return nullptr;
  if (worker.rank.value >= stage.answered.size() || stage.answered[worker.rank.value]) return nullptr;
  return &stage;
}

void Dispatcher::onStarted(WorkerId worker, const wire::StageStarted& event) {
  JobRun* run = find(event.job_id());
  StageRun* stage = openStage(run, worker);
  if (stage == nullptr) return;
  stage->moved = clock_.now();
  if (std::exchange(stage->started, true) || run->outcome) return;
  host_.onStageStarted(run->spec.id, worker.group);
  if (!shapes_[lanes_[worker.group.value].place].inputs.empty()) return;
  stage->computes = true;
  host_.onStageComputes(run->spec.id, worker.group);
}

void Dispatcher::onInputsConsumed(WorkerId worker, const wire::InputsConsumed& event) {
  JobRun* run = find(event.job_id());
  StageRun* stage = openStage(run, worker);
  if (stage == nullptr) return;
  stage->moved = clock_.now();
  for (const size_t link : shapes_[lanes_[worker.group.value].place].inputs) {
    const PromisedArtifact& artifact = *run->promises[link];
    const bool named = std::any_of(event.refs().begin(), event.refs().end(), [&](const wire::ArtifactRef& ref) {
      return ref.channel_id() == artifact.channel.value && ref.sequence() == artifact.sequence.value;
    });
    if (named) settle(artifact, worker.rank);
  }
  if (std::exchange(stage->computes, true) || run->outcome) return;
  host_.onStageComputes(run->spec.id, worker.group);
}

void Dispatcher::onProgress(WorkerId worker, const wire::StepProgress& event) {
  JobRun* run = find(event.job_id());
  StageRun* stage = openStage(run, worker);
  if (stage == nullptr) return;
  stage->moved = clock_.now();
  // Ranks report the same steps; the first to say so is believed.
  const bool news = event.step() > stage->step || event.steps() != stage->steps;
  stage->step = std::max(stage->step, event.step());
  stage->steps = event.steps();
  if (news && !run->outcome) host_.onStageProgress(run->spec.id, worker.group, stage->step, stage->steps);
}

void Dispatcher::onDone(WorkerId worker, const wire::StageDone& event) {
  JobRun* run = find(event.job_id());
  if (openStage(run, worker) == nullptr) return;
  for (const size_t link : shapes_[lanes_[worker.group.value].place].outputs) {
    const PromisedArtifact& artifact = *run->promises[link];
    const bool named = std::any_of(event.outputs().begin(), event.outputs().end(), [&](const wire::TensorRef& output) {
      return output.artifact().channel_id() == artifact.channel.value &&
             output.artifact().sequence() == artifact.sequence.value;
    });
    const bool publishes = worker.rank == Rank(0) || topology_.edges[artifact.edge.value].publishesParts();
    if (named && publishes) run->published.insert({link, worker.rank});
  }
  answer(*run, worker, absl::OkStatus(), event.timings());
}

void Dispatcher::onTransfer(const JobId& job, WorkerId producer, EdgeIndex edge, const wire::TransferDone& event) {
  const SequenceNumber sequence(event.artifact().sequence());
  JobRun* run = find(job);
  const size_t link = topology_.edges[edge.value].link;
  if (run == nullptr || !run->promises[link] || run->promises[link]->sequence != sequence) return;
  run->acknowledged.insert({link, producer.rank});
  if (!run->figures_until) return;
  maybeSucceed(*run);
  maybeRelease(*run);
}

void Dispatcher::onFailed(WorkerId worker, const wire::StageFailed& event) {
  JobRun* run = find(event.job_id());
  StageRun* stage = openStage(run, worker);
  if (stage == nullptr) return;
  const config::GroupSpec& group = topology_.groups[worker.group.value];
  const auto code = static_cast<absl::StatusCode>(event.status().code());
  const Status status = makeStatus(code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code,
                                   fmt::format("stage {} ({}), rank {}, step {}: {}", group.name, group.stage,
                                               worker.rank.value, event.step(), event.status().message()));
  const bool recycle = event.recycle();
  const bool of_peer = event.of_peer();
  if (!run->outcome) stage->failure = status;
  // A worker that says CANCELLED unasked has failed: nobody wanted the job cancelled.
  const bool unasked = !run->outcome && absl::IsCancelled(status);
  failAt(*run, lanes_[worker.group.value].place,
         unasked ? makeStatus(absl::StatusCode::kInternal, messageOf(status)) : status, of_peer);
  answer(*run, worker, status, {});
  if (!recycle) return;
  if (of_peer) return host_.onGroupSuspect(worker.group, status);
  giveUp(worker.group, status);
}

void Dispatcher::answer(JobRun& run, WorkerId worker, const Status& status, const wire::StageTimings& timings) {
  StageRun& stage = stageOf(run, worker.group);
  stage.answered[worker.rank.value] = true;
  stage.moved = clock_.now();
  if (!status.ok() && stage.failure.ok()) stage.failure = status;
  if (timings.compute_seconds() >= stage.timings.compute_seconds()) stage.timings = timings;
  // The answer means that this rank holds no input any more, however the command ended.
  for (const size_t link : shapes_[lanes_[worker.group.value].place].inputs)
    settle(*run.promises[link], worker.rank);
  if (--stage.ranks_left == 0) stageEnded(run, worker.group);
  maybeRelease(run);
}

void Dispatcher::settle(const PromisedArtifact& artifact, Rank rank) {
  EdgeLedger& ledger = ledgers_[artifact.edge.value];
  if (ledger.channel() == artifact.channel) ledger.settle(artifact.sequence, rank);
}

void Dispatcher::stageEnded(JobRun& run, GroupIndex group) {
  StageRun& stage = stageOf(run, group);
  stage.state = StageRun::State::kEnded;
  leaveLane(run, group);
  if (stage.failure.ok()) host_.onStageDone(run.spec.id, group, stage.timings);
  if (run.outcome) return reportIfCertain(run);
  // Its consumers have their data from now on: their stall timers begin.
  for (const size_t link : shapes_[lanes_[group.value].place].outputs)
    run.stages[topology_.links[link].to].moved = clock_.now();
  if (topology_.emitsFrames(group.value)) run.output->finish();
  maybeSucceed(run);
}

void Dispatcher::leaveLane(JobRun& run, GroupIndex group) {
  Lane& lane = lanes_[group.value];
  const bool was_first = !lane.in_flight.empty() && lane.in_flight.front() == &run;
  std::erase(lane.in_flight, &run);
  if (!was_first) return;
  lane.head_since = clock_.now();
  lane.stalled = false;
}

void Dispatcher::onDiscarded(WorkerId worker, const wire::RefsDiscarded& event) {
  const auto found = discards_.find(event.request_id());
  if (found == discards_.end()) return;
  const Discard discard = found->second;
  if (discard.rank != worker.rank || discard.reader != worker.group) return;
  discards_.erase(found);
  // Edges that closed meanwhile took their discards along.
  settle(discard.artifact, discard.rank);
  if (JobRun* run = find(discard.job)) maybeRelease(*run);
}

void Dispatcher::onOutputOpened(const JobId& job, const Status& opened) {
  JobRun* run = find(job);
  if (run == nullptr || run->outcome) return;
  run->output_due.reset();
  Status status = opened;
  if (opened.ok()) {
    const WorkerId emitter{*run->stages.back().group, Rank(0)};
    status = sink_.sendDescriptor(emitter, run->output->ringId(), run->output->ringFd());
    if (absl::IsUnavailable(status)) return;  // it has died, which is told soon
  }
  if (status.ok()) return;
  endRun(*run, status, Certainty::kCause);
  maybeRelease(*run);
}

void Dispatcher::onOutputDone(const JobId& job, StatusOr<media::OutputResult> result) {
  JobRun* run = find(job);
  if (run == nullptr || run->outcome) return;
  if (result.ok() && result->frames != run->spec.parameters.frames()) {
    result =
        absl::DataLossError(fmt::format("the result holds {} frames instead of {}: the stage that emits them is "
                                        "at fault",
                                        result->frames, run->spec.parameters.frames()));
  }
  if (!result.ok()) {
    failAt(*run, run->stages.size(), result.status());
  } else {
    run->result = *std::move(result);
    maybeSucceed(*run);
  }
  maybeRelease(*run);
}

// ---- time -----------------------------------------------------------------------------------------------------

// Only the first command of a lane runs, so only it can stall; and only once its producers have ended, for until then
// the fault would be theirs.
std::optional<Clock::TimePoint> Dispatcher::headDeadline(const Lane& lane, GroupIndex group) const {
  if (lane.in_flight.empty()) return std::nullopt;
  const JobRun& run = *lane.in_flight.front();
  const StageRun& stage = run.stages[lane.place];
  const std::vector<size_t>& inputs = shapes_[lane.place].inputs;
  const bool inputs_exist = std::all_of(inputs.begin(), inputs.end(), [&](size_t link) {
    return run.stages[topology_.links[link].from].state == StageRun::State::kEnded;
  });
  if (!inputs_exist && !stage.cancel_sent) return std::nullopt;
  return std::max(lane.head_since, stage.moved) + (run.outcome ? endLimit(run, group) : stallOf(run, group));
}

std::chrono::milliseconds Dispatcher::stallOf(const JobRun& run, GroupIndex group) const {
  return run.spec.stall_timeout.value_or(topology_.stallOf(group.value));
}

// A job may ask for less patience with itself. That its command has not ended by then does not make its worker a broken
// one: only the topology's limit says so.
std::chrono::milliseconds Dispatcher::endLimit(const JobRun& run, GroupIndex group) const {
  return std::max(stallOf(run, group), topology_.stallOf(group.value));
}

Clock::TimePoint Dispatcher::nextDeadline() const {
  Clock::TimePoint next = Clock::TimePoint::max();
  for (uint32_t group = 0; group < lanes_.size(); ++group) {
    if (const auto deadline = headDeadline(lanes_[group], GroupIndex(group))) next = std::min(next, *deadline);
  }
  for (const auto& [request, discard] : discards_)
    next = std::min(next, discard.deadline);
  for (const auto& [id, run] : runs_)
    next = std::min(
        {next, run->report_time.value_or(next), run->figures_until.value_or(next), run->output_due.value_or(next)});
  return next;
}

void Dispatcher::onTimer() {
  const Clock::TimePoint now = clock_.now();
  for (uint32_t group = 0; group < lanes_.size(); ++group) {
    const auto deadline = headDeadline(lanes_[group], GroupIndex(group));
    if (deadline && *deadline <= now) headOverdue(GroupIndex(group));
  }
  endWithoutOutput(now);
  reportDue(now);
  std::vector<GroupIndex> deaf;
  for (auto& [request, discard] : discards_) {
    if (discard.deadline > now) continue;
    deaf.push_back(discard.reader);
    discard.deadline = Clock::TimePoint::max();  // told once
  }
  for (const GroupIndex group : deaf) {
    giveUp(group, absl::UnavailableError("it does not release what it was told to discard"));
  }
}

void Dispatcher::endWithoutOutput(Clock::TimePoint now) {
  std::vector<JobRun*> due;
  for (const auto& [id, run] : runs_) {
    if (run->output_due && *run->output_due <= now) due.push_back(run.get());
  }
  for (JobRun* run : due) {
    endRun(*run,
           absl::DeadlineExceededError("its output could not be begun in time: the disk under spool.dir hangs, or is "
                                       "overloaded"),
           Certainty::kCause);
    maybeRelease(*run);
  }
}

void Dispatcher::giveUp(GroupIndex group, const Status& cause) {
  lanes_[group.value].unusable = true;
  host_.onGroupUnusable(group, cause);
}

void Dispatcher::reportDue(Clock::TimePoint now) {
  std::vector<JobRun*> due;
  for (const auto& [id, run] : runs_) {
    const bool reports = run->report_time && *run->report_time <= now;
    if (reports || (run->figures_until && *run->figures_until <= now)) due.push_back(run.get());
  }
  for (JobRun* run : due) {
    run->report_time ? report(*run) : maybeSucceed(*run);
    maybeRelease(*run);
  }
}

void Dispatcher::headOverdue(GroupIndex group) {
  JobRun& run = *lanes_[group.value].in_flight.front();
  StageRun& stage = stageOf(run, group);
  const auto seconds = [](std::chrono::duration<double> limit) { return fmt::format("{:g} s", limit.count()); };
  if (!run.outcome) {
    lanes_[group.value].stalled = true;
    run.blamed = group;
    endRun(run,
           absl::DeadlineExceededError(fmt::format("no progress for {} (stall_timeout; {})",
                                                   seconds(stallOf(run, group)), describeStage(run, group))),
           Certainty::kCause);
    return;
  }
  stage.moved = clock_.now();
  giveUp(group, absl::UnavailableError(fmt::format("a cancelled command did not end within {} ({})",
                                                   seconds(endLimit(run, group)), describeStage(run, group))));
}

}  // namespace latentd::supervisor
