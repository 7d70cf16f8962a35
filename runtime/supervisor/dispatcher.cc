#include "runtime/supervisor/dispatcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

namespace {

void setArtifact(const PromisedArtifact& artifact, wire::ArtifactRef& ref) {
  ref.set_channel_id(artifact.channel.value);
  ref.set_sequence(artifact.sequence.value);
}

}  // namespace

Dispatcher::Dispatcher(const config::Topology& topology, const Clock& clock, CommandSink& sink, DispatcherHost& host)
    : topology_(topology),
      clock_(clock),
      sink_(sink),
      host_(host),
      lanes_(topology.groups.size()),
      places_(topology.groups.size()) {
  for (size_t place = 0; place < topology.order.size(); ++place)
    places_[topology.order[place]] = place;
  for (uint32_t index = 0; index < topology.edges.size(); ++index) {
    const config::EdgeSpec& edge = topology.edges[index];
    ledgers_.emplace_back(edge.slots);
    lanes_[edge.from].outputs.push_back(EdgeIndex(index));
    lanes_[edge.to].inputs.push_back(EdgeIndex(index));
  }
}

Dispatcher::~Dispatcher() = default;

// ---- groups and edges -----------------------------------------------------------------------------------------

void Dispatcher::edgeOpened(EdgeIndex edge, ChannelId channel) {
  const config::EdgeSpec& spec = topology_.edges[edge.value];
  ledgers_[edge.value].open(channel, topology_.groups[spec.to].ranks());
}

void Dispatcher::groupReady(GroupIndex group) { lanes_[group.value].ready = true; }

void Dispatcher::groupLost(GroupIndex group, const Status& cause) {
  Lane& lane = lanes_[group.value];
  lane.ready = false;
  lane.stalled = false;
  const bool died = !std::exchange(lane.unusable, false);
  const JobRun* const first = lane.in_flight.empty() ? nullptr : lane.in_flight.front();
  std::vector<EdgeIndex> edges = lane.inputs;
  edges.insert(edges.end(), lane.outputs.begin(), lane.outputs.end());

  std::vector<JobRun*> hit(lane.in_flight.begin(), lane.in_flight.end());
  for (const auto& [id, run] : runs_) {
    if (artifactsLost(*run, edges) && std::find(hit.begin(), hit.end(), run.get()) == hit.end())
      hit.push_back(run.get());
  }
  for (const EdgeIndex edge : edges)
    ledgers_[edge.value].close();
  std::erase_if(discards_, [&](const auto& entry) {
    return std::find(edges.begin(), edges.end(), entry.second.edge) != edges.end();
  });
  lane.in_flight.clear();
  // Told first, released after: the release frees the run.
  std::vector<JobRun*> touched;
  for (const auto& [id, run] : runs_)
    touched.push_back(run.get());
  for (JobRun* run : hit) {
    StageRun& stage = run->stages[group.value];
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
    if (run->report_time) loseRun(*run, group, cause);
  }
  for (JobRun* run : touched) {
    reportIfCertain(*run);
    maybeRelease(*run);
  }
}

void Dispatcher::loseRun(JobRun& run, GroupIndex group, const Status& status) {
  const bool fails_now = !run.outcome;
  if (!fails_now && !(run.report_time && absl::IsUnavailable(*run.outcome))) return;
  run.returns = returnAfter(run, group);
  run.blamed.reset();
  if (run.returns != JobRun::Return::kDisplaced) run.blamed = group;
  if (fails_now) return endRun(run, status, Certainty::kCause);
  run.outcome = status;
  report(run);
}

JobRun::Return Dispatcher::returnAfter(const JobRun& run, GroupIndex lost) const {
  const StageRun& stage = run.stages[lost.value];
  const bool finished = stage.state == StageRun::State::kEnded && stage.ranks_left == 0 && stage.failure.ok();
  if (run.spec.may_displace && (!stage.started || finished)) return JobRun::Return::kDisplaced;
  return run.spec.may_restart ? JobRun::Return::kLost : JobRun::Return::kNone;
}

bool Dispatcher::artifactsLost(const JobRun& run, const std::vector<EdgeIndex>& edges) const {
  return std::any_of(edges.begin(), edges.end(), [&](EdgeIndex edge) {
    const std::optional<PromisedArtifact>& artifact = run.promises[edge.value];
    return artifact && ledgers_[edge.value].isOutstanding(artifact->channel, artifact->sequence);
  });
}

// ---- sending --------------------------------------------------------------------------------------------------

void Dispatcher::pump() {
  bool moved = true;
  while (moved) {
    moved = false;
    // In pipeline order: a consumer's command follows its producer's at once.
    for (const size_t group : topology_.order) {
      while (dispatchNext(GroupIndex(static_cast<uint32_t>(group))))
        moved = true;
    }
    while (admitNext())
      moved = true;
  }
}

bool Dispatcher::allReady() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.ready && !lane.stalled; }) &&
         std::all_of(ledgers_.begin(), ledgers_.end(), [](const EdgeLedger& ledger) { return ledger.isOpen(); });
}

bool Dispatcher::canSend(const Lane& lane) const {
  return lane.ready && !lane.stalled && lane.in_flight.size() < topology_.limits.in_flight_per_group &&
         std::all_of(lane.outputs.begin(), lane.outputs.end(),
                     [&](EdgeIndex edge) { return ledgers_[edge.value].hasCredit(); });
}

bool Dispatcher::inputsPromised(const JobRun& run, const Lane& lane) const {
  return std::all_of(lane.inputs.begin(), lane.inputs.end(),
                     [&](EdgeIndex edge) { return run.promises[edge.value].has_value(); });
}

bool Dispatcher::admitNext() {
  // A job leaves the queue when its first commands can go at once, so that priorities count until then.
  if (!allReady()) return false;
  for (const Lane& lane : lanes_) {
    if (lane.inputs.empty() && (!lane.waiting.empty() || !canSend(lane))) return false;
  }
  std::optional<JobSpec> spec = host_.takeNextJob();
  if (!spec) return false;
  auto run = std::make_unique<JobRun>();
  run->spec = std::move(*spec);
  run->stages.resize(lanes_.size());
  run->promises.resize(ledgers_.size());
  for (Lane& lane : lanes_)
    lane.waiting.push_back(run.get());
  const JobId id = run->spec.id;
  LATENTD_CHECK(runs_.emplace(id, std::move(run)).second, "a job is admitted once");
  return true;
}

bool Dispatcher::dispatchNext(GroupIndex group) {
  Lane& lane = lanes_[group.value];
  if (lane.waiting.empty() || !canSend(lane)) return false;
  JobRun& run = *lane.waiting.front();
  if (!inputsPromised(run, lane)) return false;
  if (group.value == topology_.sink) {
    if (const Status opened = openOutput(run, group); !opened.ok()) {
      endRun(run, opened, Certainty::kCause);
      maybeRelease(run);
      return true;
    }
  }
  lane.waiting.pop_front();
  sendRunStage(run, group);
  return true;
}

Status Dispatcher::openOutput(JobRun& run, GroupIndex group) {
  LATENTD_ASSIGN_OR_RETURN(run.output, host_.openOutput(run.spec));
  // Rank 0 is the one that has the whole picture.
  return sink_.sendDescriptor({group, Rank(0)}, run.output->ringId(), run.output->ringFd());
}

void Dispatcher::sendRunStage(JobRun& run, GroupIndex group) {
  Lane& lane = lanes_[group.value];
  const config::GroupSpec& spec = topology_.groups[group.value];
  wire::WorkerCommand command;
  wire::RunStage& stage = *command.mutable_run_stage();
  stage.set_job_id(run.spec.id);
  stage.set_method(spec.method);
  *stage.mutable_parameters() = run.spec.parameters;
  stage.set_stall_timeout_ms(static_cast<uint32_t>(std::min<int64_t>(stallOf(run, group).count(), UINT32_MAX)));
  for (const EdgeIndex edge : lane.inputs)
    setArtifact(*run.promises[edge.value], *stage.add_inputs());
  for (const EdgeIndex edge : lane.outputs) {
    EdgeLedger& ledger = ledgers_[edge.value];
    run.promises[edge.value] = PromisedArtifact{ledger.channel(), ledger.promise(run.spec.id)};
    setArtifact(*run.promises[edge.value], *stage.add_outputs());
  }

  StageRun& state = run.stages[group.value];
  state.state = StageRun::State::kDispatched;
  state.ranks_left = spec.ranks();
  state.answered.assign(spec.ranks(), false);
  state.moved = clock_.now();
  if (lane.in_flight.empty()) lane.head_since = clock_.now();
  lane.in_flight.push_back(&run);
  for (uint32_t rank = 0; rank < spec.ranks(); ++rank) {
    stage.set_frame_ring_id(run.output && group.value == topology_.sink && rank == 0 ? run.output->ringId() : 0);
    host_.onCommandSent(run.spec.id, {group, Rank(rank)});
    sink_.send({group, Rank(rank)}, command);
  }
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
  // Of a peer, perhaps, whose exit is told soon.
  if (absl::IsUnavailable(*run.outcome)) return Certainty::kPerhapsConsequence;
  // A producer's failure goes down the edges, which may be faster than its own answer.
  const bool producer_runs =
      std::any_of(topology_.order.begin(), topology_.order.begin() + static_cast<ptrdiff_t>(run.failed_at),
                  [&](size_t group) { return run.stages[group].state == StageRun::State::kDispatched; });
  return producer_runs ? Certainty::kPerhapsConsequence : Certainty::kCause;
}

void Dispatcher::failAt(JobRun& run, size_t place, const Status& status) {
  const bool first = !run.outcome;
  if (first || (run.report_time && place < run.failed_at && !absl::IsCancelled(status))) {
    run.failed_at = place;
    run.blamed.reset();
    if (place < topology_.order.size()) run.blamed = GroupIndex(static_cast<uint32_t>(topology_.order[place]));
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
  run.outcome = status;
  for (uint32_t group = 0; group < lanes_.size(); ++group) {
    if (run.stages[group].state == StageRun::State::kWaiting) std::erase(lanes_[group].waiting, &run);
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
  for (uint32_t group = 0; group < lanes_.size(); ++group) {
    StageRun& stage = run.stages[group];
    if (stage.state != StageRun::State::kDispatched || stage.cancel_sent) continue;
    stage.cancel_sent = true;
    stage.moved = clock_.now();
    wire::WorkerCommand command;
    command.mutable_cancel()->set_job_id(run.spec.id);
    for (uint32_t rank = 0; rank < stage.answered.size(); ++rank) {
      if (!stage.answered[rank]) sink_.send({GroupIndex(group), Rank(rank)}, command);
    }
  }
}

void Dispatcher::discardPromises(JobRun& run) {
  for (uint32_t edge = 0; edge < ledgers_.size(); ++edge) {
    const std::optional<PromisedArtifact>& artifact = run.promises[edge];
    const size_t consumer = topology_.edges[edge].to;
    if (!artifact || run.stages[consumer].state != StageRun::State::kWaiting) continue;
    if (!ledgers_[edge].isOutstanding(artifact->channel, artifact->sequence)) continue;
    const GroupIndex reader(static_cast<uint32_t>(consumer));
    for (uint32_t rank = 0; rank < topology_.groups[consumer].ranks(); ++rank) {
      const uint64_t request = next_discard_++;
      wire::WorkerCommand command;
      wire::DiscardRefs& discard = *command.mutable_discard_refs();
      setArtifact(*artifact, *discard.add_refs());
      discard.set_sync(true);
      discard.set_request_id(request);
      discard.set_reason(run.cancelled() ? "cancelled" : "failed");
      discards_.emplace(
          request, Discard{run.spec.id, EdgeIndex(edge), *artifact, Rank(rank), clock_.now() + endLimit(run, reader)});
      sink_.send({reader, Rank(rank)}, command);
    }
  }
}

void Dispatcher::maybeSucceed(JobRun& run) {
  if (run.outcome || !run.result) return;
  const bool all_ended = std::all_of(run.stages.begin(), run.stages.end(),
                                     [](const StageRun& stage) { return stage.state == StageRun::State::kEnded; });
  if (!all_ended) return;
  run.outcome = absl::OkStatus();
  run.reported = true;
  host_.onJobEnded(run.spec.id, *run.result);
}

bool Dispatcher::holdsNothing(const JobRun& run) const {
  for (const StageRun& stage : run.stages) {
    if (stage.state == StageRun::State::kDispatched) return false;
  }
  for (uint32_t edge = 0; edge < ledgers_.size(); ++edge) {
    const std::optional<PromisedArtifact>& artifact = run.promises[edge];
    if (artifact && ledgers_[edge].isOutstanding(artifact->channel, artifact->sequence)) return false;
  }
  return true;
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

std::optional<JobId> Dispatcher::jobOf(EdgeIndex edge, ChannelId channel, SequenceNumber sequence) const {
  const EdgeLedger& ledger = ledgers_[edge.value];
  return ledger.channel() == channel ? ledger.jobOf(sequence) : std::nullopt;
}

std::string Dispatcher::describeStage(const JobRun& run, GroupIndex group) const {
  const StageRun& stage = run.stages[group.value];
  const std::string& name = topology_.groups[group.value].name;
  if (!stage.started) return fmt::format("stage {}, not begun", name);
  if (stage.steps == 0) return fmt::format("stage {}", name);
  return fmt::format("stage {}, {} of {} steps done", name, stage.step, stage.steps);
}

std::string Dispatcher::describeWork(GroupIndex group) const {
  const Lane& lane = lanes_[group.value];
  if (lane.in_flight.empty()) return "";
  const JobRun& run = *lane.in_flight.front();
  const StageRun& stage = run.stages[group.value];
  std::string where = stage.started ? "" : ", not begun";
  if (stage.steps != 0) where = fmt::format(", step {} of {}", std::min(stage.step + 1, stage.steps), stage.steps);
  return fmt::format("running job {}{}", run.spec.id, where);
}

std::string Dispatcher::describeProgress(const JobId& job) const {
  const auto found = runs_.find(job);
  if (found == runs_.end()) return "not running";
  for (const size_t group : topology_.order) {
    const StageRun& stage = found->second->stages[group];
    if (stage.state != StageRun::State::kEnded) {
      return describeStage(*found->second, GroupIndex(static_cast<uint32_t>(group)));
    }
  }
  return "writing its result";
}

}  // namespace latentd::supervisor
