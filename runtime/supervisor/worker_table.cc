#include "runtime/supervisor/worker_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/state_machine.h"

namespace latentd::supervisor {
namespace {

constexpr TransitionTable<WorkerPhase, 20> kTransitions{{
    {WorkerPhase::kAbsent, WorkerPhase::kStarting, "exec"},
    {WorkerPhase::kStarting, WorkerPhase::kLoading, "Register came, Load was sent"},
    {WorkerPhase::kLoading, WorkerPhase::kWarmingUp, "PhaseProgress says so"},
    {WorkerPhase::kLoading, WorkerPhase::kReady, "Ready of a stage without warm-up"},
    {WorkerPhase::kWarmingUp, WorkerPhase::kReady, "Ready"},
    {WorkerPhase::kStarting, WorkerPhase::kStopping, "the daemon ends"},
    {WorkerPhase::kLoading, WorkerPhase::kStopping, "the daemon ends"},
    {WorkerPhase::kWarmingUp, WorkerPhase::kStopping, "the daemon ends"},
    {WorkerPhase::kReady, WorkerPhase::kStopping, "the daemon ends"},
    {WorkerPhase::kStarting, WorkerPhase::kKilled, "its group failed"},
    {WorkerPhase::kLoading, WorkerPhase::kKilled, "its group failed"},
    {WorkerPhase::kWarmingUp, WorkerPhase::kKilled, "its group failed"},
    {WorkerPhase::kReady, WorkerPhase::kKilled, "its group failed"},
    {WorkerPhase::kStopping, WorkerPhase::kKilled, "its grace is over"},
    {WorkerPhase::kStarting, WorkerPhase::kAbsent, "reaped"},
    {WorkerPhase::kLoading, WorkerPhase::kAbsent, "reaped"},
    {WorkerPhase::kWarmingUp, WorkerPhase::kAbsent, "reaped"},
    {WorkerPhase::kReady, WorkerPhase::kAbsent, "reaped"},
    {WorkerPhase::kStopping, WorkerPhase::kAbsent, "reaped"},
    {WorkerPhase::kKilled, WorkerPhase::kAbsent, "reaped"},
}};
static_assert(isWellFormed(kTransitions));

}  // namespace

std::string_view toString(WorkerPhase phase) {
  switch (phase) {
    case WorkerPhase::kAbsent:
      return "absent";
    case WorkerPhase::kStarting:
      return "starting";
    case WorkerPhase::kLoading:
      return "loading";
    case WorkerPhase::kWarmingUp:
      return "warming up";
    case WorkerPhase::kReady:
      return "ready";
    case WorkerPhase::kStopping:
      return "stopping";
    case WorkerPhase::kKilled:
      return "killed";
  }
  return "unknown";
}

v1::WorkerState toProto(WorkerPhase phase, bool busy) {
  switch (phase) {
    case WorkerPhase::kStarting:
      return v1::WORKER_STATE_STARTING;
    case WorkerPhase::kLoading:
      return v1::WORKER_STATE_LOADING;
    case WorkerPhase::kWarmingUp:
      return v1::WORKER_STATE_WARMING_UP;
    case WorkerPhase::kReady:
      return busy ? v1::WORKER_STATE_BUSY : v1::WORKER_STATE_READY;
    case WorkerPhase::kStopping:
      return v1::WORKER_STATE_STOPPING;
    case WorkerPhase::kAbsent:
    case WorkerPhase::kKilled:
      return v1::WORKER_STATE_FAILED;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

bool canFollow(WorkerPhase from, WorkerPhase to) { return allows(kTransitions, from, to); }

WorkerRecord& WorkerTable::at(Rank rank) {
  LATENTD_CHECK(rank.value < workers_.size(), "no such rank");
  return workers_[rank.value];
}

const WorkerRecord& WorkerTable::at(Rank rank) const {
  LATENTD_CHECK(rank.value < workers_.size(), "no such rank");
  return workers_[rank.value];
}

void WorkerTable::enter(Rank rank, WorkerPhase phase) {
  WorkerRecord& worker = at(rank);
  LATENTD_CHECK(canFollow(worker.phase, phase),
                fmt::format("rank {}: {} to {}", rank.value, toString(worker.phase), toString(phase)));
  if (phase == WorkerPhase::kAbsent) worker = WorkerRecord();
  worker.phase = phase;
}

bool WorkerTable::all(WorkerPhase phase) const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [&](const WorkerRecord& worker) { return worker.phase == phase; });
}

}  // namespace latentd::supervisor
