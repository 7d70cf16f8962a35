#include "runtime/supervisor/dispatcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

Dispatcher::Dispatcher(const config::Topology& topology, const Clock& clock, CommandSink& sink, DispatcherHost& host)
    : topology_(topology),
      clock_(clock),
      sink_(sink),
      host_(host),
      shapes_(shapesOf(topology)),
      lanes_(topology.groups.size()) {
  for (size_t group = 0; group < lanes_.size(); ++group)
    lanes_[group].place = topology.groups[group].place;
  for (uint32_t index = 0; index < topology.edges.size(); ++index) {
    const config::EdgeSpec& edge = topology.edges[index];
    ledgers_.emplace_back(edge.slots);
    lanes_[edge.from].edges.push_back(EdgeIndex(index));
    lanes_[edge.to].edges.push_back(EdgeIndex(index));
  }
}

Dispatcher::~Dispatcher() = default;

// ---- groups and edges -----------------------------------------------------------------------------------------

void Dispatcher::edgeOpened(EdgeIndex edge, ChannelId channel) {
  const config::EdgeSpec& spec = topology_.edges[edge.value];
  ledgers_[edge.value].open(channel, topology_.groups[spec.to].ranks());
}

void Dispatcher::groupReady(GroupIndex group) {
  lanes_[group.value].ready = true;
  lanes_[group.value].held = false;
}

void Dispatcher::groupLost(GroupIndex group, const Status& cause) {
  Lane& lane = lanes_[group.value];
  lane.ready = false;
  lane.held = false;
  lane.stalled = false;
  const bool died = !std::exchange(lane.unusable, false);
  const JobRun* const first = lane.in_flight.empty() ? nullptr : lane.in_flight.front();

  std::vector<JobRun*> hit(lane.in_flight.begin(), lane.in_flight.end());
  // What only waits for it keeps its place, unless a replica is there to take it.
  const bool replaceable = shapes_[lane.place].groups.size() > 1;
  for (const auto& [id, run] : runs_) {
    const StageRun& stage = run->stages[lane.place];
    const bool waits = stage.group == group && stage.state == StageRun::State::kWaiting;
    const bool lost = artifactsLost(*run, lane.edges) || (waits && replaceable);
    if (lost && std::find(hit.begin(), hit.end(), run.get()) == hit.end()) hit.push_back(run.get());
  }
  for (const EdgeIndex edge : lane.edges)
    ledgers_[edge.value].close();
  std::erase_if(discards_, [&](const auto& entry) {
    return std::find(lane.edges.begin(), lane.edges.end(), entry.second.artifact.edge) != lane.edges.end();
  });
  lane.in_flight.clear();
  // Told first, released after: the release frees the run.
  std::vector<JobRun*> touched;
  for (const auto& [id, run] : runs_)
    touched.push_back(run.get());
  for (JobRun* run : hit) {
    StageRun& stage = run->stages[lane.place];
    std::string message = messageOf(cause);
    if (stage.state == StageRun::State::kDispatched) {
      // On the first line: what follows it is what the worker printed.
      message.insert(std::min(message.find('\n'), message.size()), fmt::format(" ({})", describeStage(*run, group)));
      stage.state = StageRun::State::kEnded;
      // What killed it at once may not have been told to have begun; behind the first one a rank may have run ahead.
      stage.started = run == first && (stage.started || died);
    }
    loseRun(*run, group, makeStatus(cause.code(), message));
  }
  // What failed a moment ago failed because of this.
  for (JobRun* run : touched) {
    if (run->report_time && run->stages[lane.place].group == group) loseRun(*run, group, cause);
  }
  for (JobRun* run : touched) {
    reportIfCertain(*run);
    if (run->figures_until) maybeSucceed(*run);
    maybeRelease(*run);
  }
}

void Dispatcher::loseRun(JobRun& run, GroupIndex group, const Status& status) {
  const bool fails_now = !run.outcome;
  if (!fails_now && !(run.report_time && run.maybeOfPeer())) return;
  run.returns = returnAfter(run, group);
  run.blamed.reset();
  if (run.returns != JobRun::Return::kDisplaced) run.blamed = group;
  if (fails_now) return endRun(run, status, Certainty::kCause);
  run.outcome = status;
  report(run);
}

JobRun::Return Dispatcher::returnAfter(const JobRun& run, GroupIndex lost) const {
  const StageRun& stage = stageOf(run, lost);
  const bool finished = stage.state == StageRun::State::kEnded && stage.ranks_left == 0 && stage.failure.ok();
  if (run.spec.may_displace && (!stage.started || finished)) return JobRun::Return::kDisplaced;
  return run.spec.may_restart ? JobRun::Return::kLost : JobRun::Return::kNone;
}

bool Dispatcher::artifactsLost(const JobRun& run, const std::vector<EdgeIndex>& edges) const {
  return std::any_of(run.promises.begin(), run.promises.end(), [&](const std::optional<PromisedArtifact>& artifact) {
    return artifact && isOutstanding(*artifact) && std::find(edges.begin(), edges.end(), artifact->edge) != edges.end();
  });
}

// ---- the end of a job -----------------------------------------------------------------------------------------

bool Dispatcher::end(const JobId& job, const Status& status) {
  JobRun* run = find(job);
  if (run == nullptr) return false;
  // A job that waits to be handed back has not ended for anybody else.
  const bool returns = std::exchange(run->returns, JobRun::Return::kNone) != JobRun::Return::kNone;
  const bool first = !run->outcome || returns;
  if (returns) {
    run->outcome = status;
    if (!run->cancelled()) report(*run);
  } else if (first) {
    endRun(*run, status, Certainty::kCause);
  }
  // Whoever wants it ended now gets what is known.
  if (run->report_time) report(*run);
  maybeRelease(*run);
  return first;
}

Dispatcher::Certainty Dispatcher::certaintyOf(const JobRun& run) const {
  if (run.maybeOfPeer()) return Certainty::kPerhapsConsequence;
  // A producer's failure goes down the edges, which may be faster than its own answer.
  const bool producer_runs =
      std::any_of(run.stages.begin(), run.stages.begin() + static_cast<ptrdiff_t>(run.failed_at),
                  [](const StageRun& stage) { return stage.state == StageRun::State::kDispatched; });
  return producer_runs ? Certainty::kPerhapsConsequence : Certainty::kCause;
}

void Dispatcher::failAt(JobRun& run, size_t place, const Status& status, bool of_peer) {
  const bool first = !run.outcome;
  const bool nearer = place < run.failed_at || (place == run.failed_at && run.of_peer && !of_peer);
  if (first || (run.report_time && nearer && !absl::IsCancelled(status))) {
    run.failed_at = place;
    run.of_peer = of_peer;
    run.blamed.reset();
    if (place < run.stages.size()) run.blamed = run.stages[place].group;
    if (first) {
      endRun(run, status, Certainty::kPerhapsConsequence);
    } else {
      run.outcome = status;
    }
  }
  reportIfCertain(run);
}

void Dispatcher::reportIfCertain(JobRun& run) {
  if (run.report_time && certaintyOf(run) == Certainty::kCause) report(run);
}

void Dispatcher::endRun(JobRun& run, const Status& status, Certainty certainty) {
  LATENTD_CHECK(!run.outcome && !status.ok(), "a job fails once");
  sendRuns();  // before what cancels them
  run.outcome = status;
  run.output_due.reset();
  for (const StageRun& stage : run.stages) {
    if (stage.group && stage.state == StageRun::State::kWaiting) std::erase(lanes_[stage.group->value].waiting, &run);
  }
  if (run.output) run.output->abort(status);
  cancelCommands(run);
  discardPromises(run);
  // After the discards, which look at who is still to consume.
  for (StageRun& stage : run.stages) {
    if (stage.state == StageRun::State::kWaiting) stage.state = StageRun::State::kEnded;
  }
  if (certainty == Certainty::kPerhapsConsequence) {
    run.report_time = clock_.now() + kCauseTimeout;
  } else if (!run.cancelled()) {
    report(run);
  }
}

void Dispatcher::report(JobRun& run) {
  run.report_time.reset();
  if (const auto blamed = std::exchange(run.blamed, std::nullopt)) {
    host_.onStageFailed(run.spec.id, *blamed, *run.outcome);
  }
  if (run.returns != JobRun::Return::kNone) return;
  run.reported = true;
  host_.onJobEnded(run.spec.id, *run.outcome);
}

void Dispatcher::cancelCommands(JobRun& run) {
  for (StageRun& stage : run.stages) {
    if (stage.state != StageRun::State::kDispatched || stage.cancel_sent) continue;
    stage.cancel_sent = true;
    stage.moved = clock_.now();
    wire::WorkerCommand command;
    command.mutable_cancel()->set_job_id(run.spec.id);
    for (uint32_t rank = 0; rank < stage.answered.size(); ++rank) {
      if (!stage.answered[rank]) sink_.send({*stage.group, Rank(rank)}, command);
    }
  }
}

void Dispatcher::discardPromises(JobRun& run) {
  for (size_t link = 0; link < run.promises.size(); ++link) {
    const std::optional<PromisedArtifact>& artifact = run.promises[link];
    const StageRun& consumer = run.stages[topology_.links[link].to];
    if (!artifact || consumer.state != StageRun::State::kWaiting || !isOutstanding(*artifact)) continue;
    const GroupIndex reader = *consumer.group;
    for (uint32_t rank = 0; rank < topology_.groups[reader.value].ranks(); ++rank) {
      const uint64_t request = next_discard_++;
      wire::WorkerCommand command;
      wire::DiscardRefs& discard = *command.mutable_discard_refs();
      *discard.add_refs() = toProto(*artifact);
      discard.set_sync(true);
      discard.set_request_id(request);
      discard.set_reason(run.cancelled() ? "cancelled" : "failed");
      discards_.emplace(request,
                        Discard{run.spec.id, reader, *artifact, Rank(rank), clock_.now() + endLimit(run, reader)});
      sink_.send({reader, Rank(rank)}, command);
    }
  }
}

void Dispatcher::maybeSucceed(JobRun& run) {
  if (run.outcome || !run.result) return;
  const bool all_ended = std::all_of(run.stages.begin(), run.stages.end(),
                                     [](const StageRun& stage) { return stage.state == StageRun::State::kEnded; });
  if (!all_ended) return;
  if (!figuresTold(run)) {
    if (!run.figures_until) run.figures_until = clock_.now() + kFiguresTimeout;
    if (clock_.now() < *run.figures_until) return;
  }
  run.figures_until.reset();
  run.outcome = absl::OkStatus();
  run.reported = true;
  host_.onJobEnded(run.spec.id, *run.result);
}

bool Dispatcher::figuresTold(const JobRun& run) const {
  return std::all_of(run.published.begin(), run.published.end(), [&](const Handoff& handoff) {
    const PromisedArtifact& artifact = *run.promises[handoff.link];
    const bool gone = ledgers_[artifact.edge.value].channel() != artifact.channel;
    return gone || run.acknowledged.count(handoff) != 0;
  });
}

bool Dispatcher::holdsNothing(const JobRun& run) const {
  for (const StageRun& stage : run.stages) {
    if (stage.state == StageRun::State::kDispatched) return false;
  }
  return std::none_of(
      run.promises.begin(), run.promises.end(),
      [this](const std::optional<PromisedArtifact>& artifact) { return artifact && isOutstanding(*artifact); });
}

bool Dispatcher::isOutstanding(const PromisedArtifact& artifact) const {
  return ledgers_[artifact.edge.value].isOutstanding(artifact.channel, artifact.sequence);
}

void Dispatcher::maybeRelease(JobRun& run) {
  if (!run.outcome || run.report_time || !holdsNothing(run)) return;
  const auto found = runs_.find(run.spec.id);
  const std::unique_ptr<JobRun> released = std::move(found->second);
  runs_.erase(found);
  // The output goes first: CANCELLED means that nothing is left of the job.
  released->output.reset();
  if (released->reported) return;
  if (released->returns == JobRun::Return::kLost) return host_.onJobLost(released->spec.id, *released->outcome);
  if (released->returns == JobRun::Return::kDisplaced) {
    return host_.onJobDisplaced(released->spec.id, *released->outcome);
  }
  host_.onJobEnded(released->spec.id, *released->outcome);
}

JobRun* Dispatcher::find(const std::string& job) {
  const auto found = runs_.find(job);
  return found == runs_.end() ? nullptr : found->second.get();
}

}  // namespace latentd::supervisor
