// Whether jobs can pass, and what is missing if not.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/supervisor/fleet.h"

namespace latentd::supervisor {

bool Fleet::allReady() const { return readiness().ok(); }

Status Fleet::groupReadiness(GroupIndex index) const {
  const Group& group = *groups_[index.value];
  if (group.state() != Group::State::kLoaded) {
    std::string detail;
    for (uint32_t rank = 0; rank < group.spec().ranks(); ++rank) {
      const WorkerRecord& worker = group.workers().at(Rank(rank));
      detail += fmt::format("; rank {} {}", rank, toString(worker.phase));
      if (worker.progress.fraction() > 0) detail += fmt::format(" {:.0f} %", worker.progress.fraction() * 100);
    }
    if (!group.lastFailure().ok()) detail += "; last failure: " + messageOf(group.lastFailure());
    return absl::UnavailableError(fmt::format("{} is not ready{}", group.spec().name, detail));
  }
  for (const auto& [worker, connection] : connection_of_) {
    if (worker.group != index || health_.fresh(worker)) continue;
    return absl::UnavailableError(fmt::format("{} rank {} is silent", group.spec().name, worker.rank.value));
  }
  return absl::OkStatus();
}

Status Fleet::completeness() const {
  for (const auto& group : groups_)
    LATENTD_RETURN_IF_ERROR(groupReadiness(group->index()));
  for (uint32_t edge = 0; edge < topology_.edges.size(); ++edge) {
    if (!plan_.isOpen(EdgeIndex(edge))) {
      return absl::UnavailableError(fmt::format("edge {} is not open", topology_.edges[edge].name));
    }
  }
  return absl::OkStatus();
}

Status Fleet::readiness() const {
  if (!was_ready_) return completeness();
  const auto ready = [this](size_t group) { return groupReadiness(GroupIndex(static_cast<uint32_t>(group))); };
  for (const config::StageSpec& stage : topology_.stages) {
    const bool one_serves =
        std::any_of(stage.groups.begin(), stage.groups.end(), [&](size_t group) { return ready(group).ok(); });
    if (!one_serves) return ready(stage.groups.front());
  }
  for (size_t link = 0; link < topology_.links.size(); ++link) {
    bool one_open = false;
    for (uint32_t edge = 0; edge < topology_.edges.size(); ++edge)
      one_open = one_open || (topology_.edges[edge].link == link && plan_.isOpen(EdgeIndex(edge)));
    if (!one_open) return absl::UnavailableError(fmt::format("edge {} is not open", topology_.links[link].name));
  }
  return absl::OkStatus();
}

bool Fleet::serves(GroupIndex group) const {
  const auto loaded = [this](size_t index) { return groups_[index]->state() == Group::State::kLoaded; };
  if (!loaded(group.value)) return false;
  for (uint32_t index = 0; index < topology_.edges.size(); ++index) {
    const config::EdgeSpec& edge = topology_.edges[index];
    const bool of_group = edge.from == group.value || edge.to == group.value;
    if (of_group && loaded(edge.from) && loaded(edge.to) && !plan_.isOpen(EdgeIndex(index))) return false;
  }
  return true;
}

std::vector<v1::ModelLimits> Fleet::stageLimits() const {
  std::vector<v1::ModelLimits> limits;
  for (const config::StageSpec& stage : topology_.stages)
    limits.push_back(groups_[stage.groups.front()]->limits());
  return limits;
}

}  // namespace latentd::supervisor
