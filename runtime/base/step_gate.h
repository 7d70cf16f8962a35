#pragma once

#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd {

// How the ranks of a group agree at which step a run stops. A rank that left a collective alone would hang the others,
// so only rank 0 (the lead) decides: it grants step after step, or stops the run at one; the others enter step k only
// once step k or a later one was granted. A run is the n-th stage command of the epoch: every rank receives the same
// commands in the same order, and counts them from 1.
//
//   lead        grant(run, 0) .. grant(run, k)    stop(run, k + 1)
//   follower    step k + 1: waits                 -> kStop
//
// Before its first run a group meets: a rank that has loaded early would wait in its first collective for the others,
// whose loads take what they take.
// The memory holds one word a run for the last kRunWindow runs, so that a run that is still queued can be stopped while
// another one computes. A group of one rank uses the same object.
// Owner: the worker. Thread: grant() and stop() of one run from one thread at a time; the rest from any.
// States of a run: undecided -> granted up to a step -> stopped at a step behind it; a stop stays, and so does a grant.
// Failure: DEADLINE_EXCEEDED when the lead decides nothing; DATA_LOSS when it is kRunWindow runs ahead.
class StepGate {
 public:
  enum class Decision {
    kUndecided,
    kGo,
    kStop,
  };
  // More than any worker queues (its command queue is bounded by half of this).
  static constexpr uint64_t kRunWindow = 64;
  static constexpr uint32_t kStepMax = (1u << 30) - 1;

  // Memory for one group, made by whoever starts its ranks.
  static StatusOr<ShmRegion> createRegion();
  static StatusOr<StepGate> attach(ShmRegion region, Rank rank);

  bool isLead() const { return rank_ == Rank(0); }

  // Once a rank: returns when all `ranks` have called it. DEADLINE_EXCEEDED if some do not come.
  Status meet(uint32_t ranks, Clock::TimePoint deadline);

  // Lead only. A run that was stopped stays stopped: the answer is the decision that holds for `step`.
  Decision grant(uint64_t run, uint32_t step);
  // Lead only: no step from `step` on, but for those that were granted. No effect on a run that was stopped before.
  void stop(uint64_t run, uint32_t step);

  StatusOr<Decision> decision(uint64_t run, uint32_t step) const;
  // Never kUndecided.
  StatusOr<Decision> waitDecision(uint64_t run, uint32_t step, Clock::TimePoint deadline) const;

 private:
  struct Memory;
  StepGate(ShmRegion region, Rank rank);
  Memory& memory() const;
  void wakeAll();

  ShmRegion region_;
  Rank rank_;
};

}  // namespace latentd
