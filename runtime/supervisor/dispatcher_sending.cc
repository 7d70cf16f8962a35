// How jobs get their groups and workers their commands.
#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/supervisor/dispatcher.h"
#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

namespace {

// What is left of a stage for this job, to be compared with others: its steps take as long as its pixels are many.
double workLeft(const JobRun& run, const StageRun& stage) {
  const v1::JobParameters& parameters = run.spec.parameters;
  const double steps = std::max(1U, parameters.steps());
  const double done = stage.steps == 0 ? 0 : std::min(1.0, double(stage.step) / stage.steps);
  return double(parameters.frames()) * parameters.width() * parameters.height() * steps * (1 - done);
}

}  // namespace

void Dispatcher::pump() {
  bool moved = true;
  while (moved) {
    moved = false;
    // In pipeline order: a consumer has its promise once its producer's command is made.
    for (const StageShape& shape : shapes_) {
      for (const GroupIndex group : shape.groups) {
        while (dispatchNext(group))
          moved = true;
      }
    }
    while (admitNext())
      moved = true;
  }
  sendRuns();
}

// ---- who can take a command -----------------------------------------------------------------------------------

bool Dispatcher::hasRoom(const Lane& lane) const {
  return lane.ready && !lane.held && !lane.stalled && lane.in_flight.size() < topology_.limits.in_flight_per_group;
}

EdgeIndex Dispatcher::edgeBetween(size_t link, GroupIndex from, GroupIndex to) const {
  return EdgeIndex(static_cast<uint32_t>(topology_.edgeBetween(link, from.value, to.value)));
}

const EdgeLedger& Dispatcher::ledgerBetween(size_t link, GroupIndex from, GroupIndex to) const {
  return ledgers_[edgeBetween(link, from, to).value];
}

bool Dispatcher::feeds(GroupIndex group, const Takes& takes) const {
  const std::vector<size_t>& outputs = shapes_[lanes_[group.value].place].outputs;
  return std::all_of(outputs.begin(), outputs.end(), [&](size_t link) {
    const std::vector<GroupIndex>& consumers = shapes_[topology_.links[link].to].groups;
    return std::any_of(consumers.begin(), consumers.end(),
                       [&](GroupIndex to) { return takes(to, ledgerBetween(link, group, to)); });
  });
}

std::vector<bool> Dispatcher::groupsWithWayOn() const {
  std::vector<bool> has_way(lanes_.size());
  for (size_t place = shapes_.size(); place-- > 0;) {
    for (const GroupIndex group : shapes_[place].groups) {
      const Lane& lane = lanes_[group.value];
      has_way[group.value] = lane.ready && !lane.stalled && feeds(group, [&](GroupIndex to, const EdgeLedger& ledger) {
                               return has_way[to.value] && ledger.isOpen();
                             });
    }
  }
  return has_way;
}

// ---- which group takes a job ----------------------------------------------------------------------------------

// Whoever has the least to do is worth waiting for: what is given to another one now begins there later.
std::optional<GroupIndex> Dispatcher::leastLoaded(size_t place, const Can& can, const Can& at_once) const {
  std::optional<GroupIndex> best;
  std::tuple<bool, double, bool, size_t, uint64_t> least;
  for (const GroupIndex group : shapes_[place].groups) {
    if (!can(group)) continue;
    const Lane& lane = lanes_[group.value];
    double work = 0;
    for (const std::deque<JobRun*>* jobs : {&lane.in_flight, &lane.waiting}) {
      for (const JobRun* run : *jobs)
        work += workLeft(*run, run->stages[place]);
    }
    // Of equals one that can take it now, and of these the one that was chosen longest ago.
    const std::tuple load(lane.stalled, work, !at_once(group), lane.in_flight.size() + lane.waiting.size(),
                          lane.last_bound);
    if (best && load >= least) continue;
    best = group;
    least = load;
  }
  return best && at_once(*best) ? best : std::nullopt;
}

std::optional<GroupIndex> Dispatcher::consumerOf(GroupIndex group, size_t link, const Can& can) const {
  return leastLoaded(
      topology_.links[link].to, [&](GroupIndex to) { return can(to) && ledgerBetween(link, group, to).isOpen(); },
      [&](GroupIndex to) { return ledgerBetween(link, group, to).hasCredit(); });
}

void Dispatcher::bind(JobRun& run, GroupIndex group) {
  Lane& lane = lanes_[group.value];
  run.stages[lane.place].group = group;
  lane.last_bound = ++bindings_;
  const auto later = std::find_if(lane.waiting.begin(), lane.waiting.end(),
                                  [&](const JobRun* other) { return other->admission > run.admission; });
  lane.waiting.insert(later, &run);
}

bool Dispatcher::bindConsumers(JobRun& run, GroupIndex group) {
  std::vector<GroupIndex> chosen;
  for (const size_t link : shapes_[lanes_[group.value].place].outputs) {
    const size_t place = topology_.links[link].to;
    const std::optional<GroupIndex> bound = run.stages[place].group;
    const auto consumer = consumerOf(group, link, [&](GroupIndex to) { return !bound || to == *bound; });
    if (!consumer) return false;
    if (!bound) chosen.push_back(*consumer);
  }
  for (const GroupIndex consumer : chosen)
    bind(run, consumer);
  return true;
}

// ---- admission ------------------------------------------------------------------------------------------------

bool Dispatcher::isFree(GroupIndex group) const {
  return lanes_[group.value].waiting.empty() && hasRoom(lanes_[group.value]);
}

bool Dispatcher::canBegin(GroupIndex group, const std::vector<bool>& has_way) const {
  const Lane& lane = lanes_[group.value];
  if (!isFree(group)) return false;
  const std::vector<size_t>& outputs = shapes_[lane.place].outputs;
  return std::all_of(outputs.begin(), outputs.end(), [&](size_t link) {
    return consumerOf(group, link, [&](GroupIndex to) { return has_way[to.value]; }).has_value();
  });
}

// Where a job begins it gets its group when it leaves the queue, and so on the way to a join. The first commands can go
// at once, so that priorities count until then. Nothing if that is not so, or a stage has no group that can serve.
std::optional<std::vector<GroupIndex>> Dispatcher::groupsForNext() const {
  // Most events find the pipeline full at its beginning: then nothing else is looked at.
  const bool full = std::any_of(shapes_.begin(), shapes_.end(), [this](const StageShape& shape) {
    const auto is_free = [this](GroupIndex group) { return isFree(group); };
    return shape.inputs.empty() && std::none_of(shape.groups.begin(), shape.groups.end(), is_free);
  });
  if (full) return std::nullopt;
  const std::vector<bool> has_way = groupsWithWayOn();
  std::vector<std::optional<GroupIndex>> chosen(shapes_.size());  // by place
  const auto follows = [&](GroupIndex group) {
    const std::vector<size_t>& inputs = shapes_[lanes_[group.value].place].inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](size_t link) {
      const size_t from = topology_.links[link].from;
      return !shapes_[from].inputs.empty() || ledgerBetween(link, *chosen[from], group).hasCredit();
    });
  };
  std::vector<GroupIndex> groups;
  for (size_t place = 0; place < shapes_.size(); ++place) {
    const StageShape& shape = shapes_[place];
    const bool first = shape.inputs.empty();
    const bool bound_now = first || shape.before_join;
    chosen[place] = leastLoaded(
        place, [&](GroupIndex group) { return has_way[group.value]; },
        [&](GroupIndex group) { return !bound_now || (first ? canBegin(group, has_way) : follows(group)); });
    if (!chosen[place]) return std::nullopt;
    if (bound_now) groups.push_back(*chosen[place]);
  }
  return groups;
}

bool Dispatcher::admitNext() {
  const std::optional<std::vector<GroupIndex>> groups = groupsForNext();
  if (!groups) return false;
  std::optional<JobSpec> spec = host_.takeNextJob();
  if (!spec) return false;
  auto run = std::make_unique<JobRun>();
  run->spec = std::move(*spec);
  run->admission = ++admissions_;
  run->stages.resize(topology_.stages.size());
  run->promises.resize(topology_.links.size());
  for (const GroupIndex group : *groups)
    bind(*run, group);
  const JobId id = run->spec.id;
  LATENTD_CHECK(runs_.emplace(id, std::move(run)).second, "a job is admitted once");
  return true;
}

// ---- commands -------------------------------------------------------------------------------------------------

bool Dispatcher::inputsPromised(const JobRun& run, size_t place) const {
  const std::vector<size_t>& inputs = shapes_[place].inputs;
  return std::all_of(inputs.begin(), inputs.end(), [&](size_t link) { return run.promises[link].has_value(); });
}

// A worker runs its commands in order. Of jobs that come from replicas the one whose input is there first must be
// first, so its command waits for the producer's last step: early enough for the command to be there before the tensor
// is.
bool Dispatcher::inputsNear(const JobRun& run, size_t place) const {
  const std::vector<size_t>& inputs = shapes_[place].inputs;
  return std::all_of(inputs.begin(), inputs.end(), [&](size_t link) {
    const size_t from = topology_.links[link].from;
    if (topology_.stages[from].groups.size() == 1) return true;
    const StageRun& producer = run.stages[from];
    return producer.state == StageRun::State::kEnded || (producer.steps > 0 && producer.step + 1 >= producer.steps);
  });
}

// The numbers of an edge are consumed in their order.
bool Dispatcher::isFirstOnItsEdges(const JobRun& run, const Lane& lane) const {
  return std::none_of(lane.waiting.begin(), lane.waiting.end(), [&](const JobRun* other) {
    return std::any_of(shapes_[lane.place].inputs.begin(), shapes_[lane.place].inputs.end(), [&](size_t link) {
      const std::optional<PromisedArtifact>& before = other->promises[link];
      return before && before->edge == run.promises[link]->edge && before->sequence < run.promises[link]->sequence;
    });
  });
}

JobRun* Dispatcher::nextOf(const Lane& lane) const {
  const bool strict = shapes_[lane.place].before_join;
  for (JobRun* run : lane.waiting) {
    const bool promised = inputsPromised(*run, lane.place);
    if (promised && (strict || (inputsNear(*run, lane.place) && isFirstOnItsEdges(*run, lane)))) return run;
    if (strict) return nullptr;
  }
  return nullptr;
}

bool Dispatcher::dispatchNext(GroupIndex group) {
  Lane& lane = lanes_[group.value];
  if (lane.waiting.empty() || !hasRoom(lane)) return false;
  JobRun* const run = nextOf(lane);
  if (run == nullptr || !bindConsumers(*run, group)) return false;
  if (topology_.emitsFrames(group.value)) {
    StatusOr<std::unique_ptr<media::Output>> output = host_.openOutput(run->spec);
    if (!output.ok()) {
      endRun(*run, output.status(), Certainty::kCause);
      maybeRelease(*run);
      return true;
    }
    run->output = *std::move(output);
    run->output_due = clock_.now() + std::clamp<std::chrono::milliseconds>(stallOf(*run, group) / 2, kOutputTimeoutMin,
                                                                           kOutputTimeoutMax);
  }
  std::erase(lane.waiting, run);
  makeRunStage(*run, group);
  return true;
}

void Dispatcher::makeRunStage(JobRun& run, GroupIndex group) {
  Lane& lane = lanes_[group.value];
  const config::GroupSpec& spec = topology_.groups[group.value];
  const StageShape& shape = shapes_[lane.place];
  wire::WorkerCommand command;
  wire::RunStage& stage = *command.mutable_run_stage();
  stage.set_job_id(run.spec.id);
  stage.set_method(spec.method);
  *stage.mutable_parameters() = run.spec.parameters;
  stage.set_stall_timeout_ms(static_cast<uint32_t>(std::min<int64_t>(stallOf(run, group).count(), UINT32_MAX)));
  for (const size_t link : shape.inputs)
    *stage.add_inputs() = toProto(*run.promises[link]);
  for (const size_t link : shape.outputs) {
    const EdgeIndex edge = edgeBetween(link, group, *run.stages[topology_.links[link].to].group);
    EdgeLedger& ledger = ledgers_[edge.value];
    run.promises[link] = PromisedArtifact{edge, ledger.channel(), ledger.promise(run.spec.id)};
    *stage.add_outputs() = toProto(*run.promises[link]);
  }

  StageRun& state = run.stages[lane.place];
  state.state = StageRun::State::kDispatched;
  state.ranks_left = spec.ranks();
  state.answered.assign(spec.ranks(), false);
  state.moved = clock_.now();
  if (lane.in_flight.empty()) lane.head_since = clock_.now();
  lane.in_flight.push_back(&run);
  // Rank 0 is the one that has the whole picture.
  const bool emits_frames = topology_.emitsFrames(group.value);
  for (uint32_t rank = 0; rank < spec.ranks(); ++rank) {
    stage.set_frame_ring_id(run.output && emits_frames && rank == 0 ? run.output->ringId() : 0);
    runs_to_send_.push_back({lane.place, {group, Rank(rank)}, command});
  }
}

// A command takes longer to send than a short stage takes: a consumer's that goes first is there before its input,
// which would wait for it otherwise.
void Dispatcher::sendRuns() {
  std::stable_sort(runs_to_send_.begin(), runs_to_send_.end(),
                   [](const OutgoingRun& a, const OutgoingRun& b) { return a.place > b.place; });
  for (OutgoingRun& run : runs_to_send_) {
    host_.onCommandSent(run.command.run_stage().job_id(), run.worker);
    sink_.send(run.worker, std::move(run.command));
  }
  runs_to_send_.clear();
}

}  // namespace latentd::supervisor
