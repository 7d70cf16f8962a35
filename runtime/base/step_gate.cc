#include "runtime/base/step_gate.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/futex.h"

namespace latentd {
namespace {

constexpr uint64_t kMagic = 0x6574616774737464;  // "dtstgate"

// One run's word: its number (modulo 2^32), what was decided, and the step it holds for.
enum class Kind : uint64_t { kNone = 0, kGranted = 1, kStopped = 2 };

struct RunWord {
  uint32_t run;
  Kind kind;
  uint32_t step;
};

uint64_t pack(const RunWord& word) {
  return uint64_t{word.run} << 32 | static_cast<uint64_t>(word.kind) << 30 | (word.step & StepGate::kStepMax);
}

RunWord unpack(uint64_t bits) {
  return {static_cast<uint32_t>(bits >> 32), static_cast<Kind>(bits >> 30 & 3),
          static_cast<uint32_t>(bits & StepGate::kStepMax)};
}

StepGate::Decision decide(const RunWord& word, uint32_t step) {
  if (word.kind == Kind::kStopped) return step < word.step ? StepGate::Decision::kGo : StepGate::Decision::kStop;
  if (word.kind == Kind::kGranted && step <= word.step) return StepGate::Decision::kGo;
  return StepGate::Decision::kUndecided;
}

}  // namespace

struct StepGate::Memory {
  uint64_t magic;
  std::atomic<uint32_t> wake;  // changes with every decision and arrival; followers sleep on it
  std::atomic<uint32_t> met;
  std::atomic<uint64_t> runs[kRunWindow];
};

StepGate::StepGate(ShmRegion region, Rank rank) : region_(std::move(region)), rank_(rank) {}

StepGate::Memory& StepGate::memory() const { return *reinterpret_cast<Memory*>(region_.data()); }

void StepGate::wakeAll() {
  memory().wake.fetch_add(1, std::memory_order_release);
  futexWakeAll(memory().wake);
}

StatusOr<ShmRegion> StepGate::createRegion() {
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, ShmRegion::create("latentd-step-gate", sizeof(Memory)));
  (new (region.data()) Memory{})->magic = kMagic;
  return region;
}

StatusOr<StepGate> StepGate::attach(ShmRegion region, Rank rank) {
  if (region.bytes() < sizeof(Memory) || reinterpret_cast<const Memory*>(region.data())->magic != kMagic) {
    return absl::InvalidArgumentError("shared memory is no step gate of this version");
  }
  return StepGate(std::move(region), rank);
}

Status StepGate::meet(uint32_t ranks, Clock::TimePoint deadline) {
  memory().met.fetch_add(1, std::memory_order_release);
  wakeAll();
  while (true) {
    const uint32_t seen = memory().wake.load(std::memory_order_acquire);
    const uint32_t met = memory().met.load(std::memory_order_acquire);
    if (met >= ranks) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError("only " + std::to_string(met) + " of " + std::to_string(ranks) +
                                         " ranks have loaded in time");
    }
    futexWait(memory().wake, seen, deadline);
  }
}

StepGate::Decision StepGate::grant(uint64_t run, uint32_t step) {
  LATENTD_CHECK(isLead(), "only rank 0 grants steps");
  LATENTD_CHECK(step <= kStepMax, "step numbers fit 30 bits");
  std::atomic<uint64_t>& shared = memory().runs[run % kRunWindow];
  const RunWord before = unpack(shared.load(std::memory_order_relaxed));
  const auto number = static_cast<uint32_t>(run);
  if (before.run == number && before.kind == Kind::kStopped) return decide(before, step);
  if (before.run == number && before.kind == Kind::kGranted && step <= before.step) return Decision::kGo;
  shared.store(pack({number, Kind::kGranted, step}), std::memory_order_release);
  wakeAll();
  return Decision::kGo;
}

void StepGate::stop(uint64_t run, uint32_t step) {
  LATENTD_CHECK(isLead(), "only rank 0 stops a run");
  std::atomic<uint64_t>& shared = memory().runs[run % kRunWindow];
  const RunWord before = unpack(shared.load(std::memory_order_relaxed));
  const auto number = static_cast<uint32_t>(run);
  if (before.run == number && before.kind == Kind::kStopped) return;
  // A follower may be inside the granted step by now.
  if (before.run == number && before.kind == Kind::kGranted) step = std::max(step, before.step + 1);
  shared.store(pack({number, Kind::kStopped, step}), std::memory_order_release);
  wakeAll();
}

StatusOr<StepGate::Decision> StepGate::decision(uint64_t run, uint32_t step) const {
  const RunWord word = unpack(memory().runs[run % kRunWindow].load(std::memory_order_acquire));
  const auto number = static_cast<uint32_t>(run);
  if (word.run == number) return decide(word, step);
  // An older run has the word until the lead reaches ours. The difference is taken modulo 2^32.
  if (word.kind == Kind::kNone || static_cast<int32_t>(word.run - number) < 0) return Decision::kUndecided;
  return absl::DataLossError("step gate: rank " + std::to_string(rank_.value) + " is in run " + std::to_string(run) +
                             ", rank 0 already in run " + std::to_string(word.run));
}

StatusOr<StepGate::Decision> StepGate::waitDecision(uint64_t run, uint32_t step, Clock::TimePoint deadline) const {
  while (true) {
    const uint32_t seen = memory().wake.load(std::memory_order_acquire);
    LATENTD_ASSIGN_OR_RETURN(const Decision decided, decision(run, step));
    if (decided != Decision::kUndecided) return decided;
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError("step gate: rank 0 did not decide on step " + std::to_string(step) +
                                         " of run " + std::to_string(run) + " in time");
    }
    futexWait(memory().wake, seen, deadline);
  }
}

}  // namespace latentd
