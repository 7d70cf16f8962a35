// What the dispatcher says of jobs and groups.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/supervisor/dispatcher.h"

namespace latentd::supervisor {

std::optional<JobId> Dispatcher::jobOf(EdgeIndex edge, ChannelId channel, SequenceNumber sequence) const {
  const EdgeLedger& ledger = ledgers_[edge.value];
  return ledger.channel() == channel ? ledger.jobOf(sequence) : std::nullopt;
}

std::string Dispatcher::describeStage(const JobRun& run, GroupIndex group) const {
  const StageRun& stage = stageOf(run, group);
  const std::string& name = topology_.groups[group.value].name;
  if (!stage.started) return fmt::format("stage {}, not begun", name);
  if (stage.steps == 0) return fmt::format("stage {}", name);
  return fmt::format("stage {}, {} of {} steps done", name, stage.step, stage.steps);
}

v1::WaitReason Dispatcher::waitReason(const JobId& job, size_t place) const {
  const auto found = runs_.find(job);
  const std::optional<GroupIndex> bound = found == runs_.end() ? std::nullopt : found->second->stages[place].group;
  if (bound) return waitReason(job, *bound);
  // Of several that can take it the least busy one will.
  v1::WaitReason best = v1::WAIT_REASON_GROUP_NOT_READY;
  for (const GroupIndex group : shapes_[place].groups) {
    const v1::WaitReason reason = waitReason(job, group);
    if (reason == v1::WAIT_REASON_UNSPECIFIED) return reason;
    if (reason != v1::WAIT_REASON_GROUP_NOT_READY) best = reason;
  }
  return best;
}

v1::WaitReason Dispatcher::waitReason(const JobId& job, GroupIndex group) const {
  const Lane& lane = lanes_[group.value];
  const std::vector<size_t>& inputs = shapes_[lane.place].inputs;
  const bool fed = std::all_of(inputs.begin(), inputs.end(), [&](size_t link) {
    const std::vector<GroupIndex>& producers = shapes_[topology_.links[link].from].groups;
    return std::any_of(producers.begin(), producers.end(),
                       [&](GroupIndex from) { return ledgerBetween(link, from, group).isOpen(); });
  });
  const auto open = [](GroupIndex, const EdgeLedger& ledger) { return ledger.isOpen(); };
  if (!lane.ready || !fed || !feeds(group, open)) return v1::WAIT_REASON_GROUP_NOT_READY;
  if (!lane.in_flight.empty()) {
    return lane.in_flight.front()->spec.id == job ? v1::WAIT_REASON_UNSPECIFIED : v1::WAIT_REASON_GROUP_BUSY;
  }
  const auto takes = [](GroupIndex, const EdgeLedger& ledger) { return ledger.hasCredit(); };
  return hasRoom(lane) && feeds(group, takes) ? v1::WAIT_REASON_UNSPECIFIED : v1::WAIT_REASON_EDGE_FULL;
}

std::vector<JobId> Dispatcher::jobs() const {
  std::vector<JobId> ids;
  for (const auto& [id, run] : runs_)
    ids.push_back(id);
  return ids;
}

std::string Dispatcher::describeWork(GroupIndex group) const {
  const Lane& lane = lanes_[group.value];
  if (lane.in_flight.empty()) return "";
  const JobRun& run = *lane.in_flight.front();
  const StageRun& stage = stageOf(run, group);
  std::string where = stage.started ? "" : ", not begun";
  if (stage.steps != 0) where = fmt::format(", step {} of {}", std::min(stage.step + 1, stage.steps), stage.steps);
  return fmt::format("running job {}{}", run.spec.id, where);
}

std::string Dispatcher::describeProgress(const JobId& job) const {
  const auto found = runs_.find(job);
  if (found == runs_.end()) return "not running";
  for (size_t place = 0; place < shapes_.size(); ++place) {
    const StageRun& stage = found->second->stages[place];
    if (stage.state == StageRun::State::kEnded) continue;
    if (!stage.group) return fmt::format("stage {}, not begun", topology_.stages[place].name);
    return describeStage(*found->second, *stage.group);
  }
  return "writing its result";
}

}  // namespace latentd::supervisor
