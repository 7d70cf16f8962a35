#include "runtime/base/step_gate.h"

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/child_test_case.h"

namespace latentd {
namespace {

using Decision = StepGate::Decision;
using testing::ChildTestCase;

Clock::TimePoint in(std::chrono::milliseconds wait) { return std::chrono::steady_clock::now() + wait; }
Clock::TimePoint soon() { return in(std::chrono::seconds(20)); }

StepGate gateOf(int fd, uint32_t rank) {
  return StepGate::attach(ShmRegion::map(duplicateFd(fd).value(), 1).value(), Rank(rank)).value();
}

TEST_CASE("step gate: a follower enters a step only once it was granted", "[base]") {
  const ShmRegion region = StepGate::createRegion().value();
  StepGate lead = gateOf(region.fd(), 0);
  const StepGate follower = gateOf(region.fd(), 1);
  CHECK(*follower.decision(1, 0) == Decision::kUndecided);
  CHECK(lead.grant(1, 0) == Decision::kGo);
  CHECK(*follower.decision(1, 0) == Decision::kGo);
  CHECK(*follower.decision(1, 1) == Decision::kUndecided);
  CHECK(follower.waitDecision(1, 1, in(std::chrono::milliseconds(20))).status().code() ==
        absl::StatusCode::kDeadlineExceeded);
  lead.grant(1, 3);
  CHECK(*follower.decision(1, 2) == Decision::kGo);
  lead.stop(1, 4);
  CHECK(*follower.decision(1, 3) == Decision::kGo);
  CHECK(*follower.decision(1, 4) == Decision::kStop);
  CHECK(*follower.decision(1, 9) == Decision::kStop);
}

TEST_CASE("step gate: a stop stays, and a later one does not move it", "[base]") {
  StepGate lead = StepGate::attach(StepGate::createRegion().value(), Rank(0)).value();
  lead.stop(7, 2);
  lead.stop(7, 1);
  CHECK(lead.grant(7, 1) == Decision::kGo);
  CHECK(lead.grant(7, 2) == Decision::kStop);
  CHECK(*lead.decision(7, 1) == Decision::kGo);
}

TEST_CASE("step gate: a granted step is never taken back", "[base]") {
  const ShmRegion region = StepGate::createRegion().value();
  StepGate lead = gateOf(region.fd(), 0);
  const StepGate follower = gateOf(region.fd(), 1);
  lead.grant(1, 0);
  REQUIRE(*follower.decision(1, 0) == Decision::kGo);  // and is in the middle of it now
  lead.stop(1, 0);
  CHECK(lead.grant(1, 0) == Decision::kGo);
  CHECK(*follower.decision(1, 0) == Decision::kGo);
  CHECK(*follower.decision(1, 1) == Decision::kStop);
  CHECK(lead.grant(1, 1) == Decision::kStop);

  lead.grant(2, 5);
  CHECK(lead.grant(2, 3) == Decision::kGo);
  CHECK(*follower.decision(2, 5) == Decision::kGo);
  lead.stop(2, 4);
  CHECK(*follower.decision(2, 5) == Decision::kGo);
  CHECK(*follower.decision(2, 6) == Decision::kStop);
}

TEST_CASE("step gate: a queued run is stopped while another one computes", "[base]") {
  const ShmRegion region = StepGate::createRegion().value();
  StepGate lead = gateOf(region.fd(), 0);
  const StepGate follower = gateOf(region.fd(), 1);
  lead.grant(5, 8);
  lead.stop(9, 0);
  CHECK(*follower.decision(5, 8) == Decision::kGo);
  CHECK(*follower.decision(9, 0) == Decision::kStop);
  CHECK(*follower.decision(6, 0) == Decision::kUndecided);
}

TEST_CASE("step gate: a lead that is a whole window ahead is an error, not a wrong answer", "[base]") {
  const ShmRegion region = StepGate::createRegion().value();
  StepGate lead = gateOf(region.fd(), 0);
  const StepGate follower = gateOf(region.fd(), 1);
  lead.grant(1, 0);
  lead.grant(1 + StepGate::kRunWindow, 0);
  CHECK(follower.decision(1, 0).status().code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("step gate: ranks meet when the last one comes", "[base]") {
  const ShmRegion region = StepGate::createRegion().value();
  StepGate lead = gateOf(region.fd(), 0);
  const Status alone = lead.meet(3, in(std::chrono::milliseconds(20)));
  CHECK(alone.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(messageOf(alone) == "only 1 of 3 ranks have loaded in time");
  StepGate other = gateOf(region.fd(), 1);
  Status met;
  std::atomic<bool> gone{false};
  std::thread second([&] {
    met = other.meet(3, soon());
    gone = true;
  });
  CHECK_FALSE(gone);
  CHECK(gateOf(region.fd(), 2).meet(3, soon()).ok());
  second.join();
  CHECK(met.ok());
}

TEST_CASE("step gate: foreign memory is refused", "[base]") {
  auto zeros = ShmRegion::create("zeros", 4096);
  CHECK(StepGate::attach(std::move(zeros).value(), Rank(0)).status().code() == absl::StatusCode::kInvalidArgument);
}

// ---- N processes --------------------------------------------------------------------------------------------

constexpr uint64_t kRuns = 50;
constexpr uint32_t kSteps = 40;

// What each rank writes: the steps it entered in each run.
struct Entered {
  std::atomic<uint32_t> steps[4][kRuns];
};

uint32_t enterSteps(StepGate& gate, uint64_t run, uint32_t stop_at) {
  for (uint32_t step = 0; step < kSteps; ++step) {
    if (gate.isLead() && step == stop_at) gate.stop(run, step);
    const Decision decided = gate.isLead() ? gate.grant(run, step) : gate.waitDecision(run, step, soon()).value();
    if (decided == Decision::kStop) return step;
  }
  return kSteps;
}

void followAllRuns(int gate_fd, int result_fd, uint32_t rank) {
  StepGate gate = gateOf(gate_fd, rank);
  const ShmRegion result = ShmRegion::map(duplicateFd(result_fd).value(), sizeof(Entered)).value();
  auto* entered = reinterpret_cast<Entered*>(result.data());
  for (uint64_t run = 1; run <= kRuns; ++run)
    entered->steps[rank][run - 1] = 1 + enterSteps(gate, run, kSteps);
}

TEST_CASE("step gate child of rank 1", "[.][child]") { followAllRuns(3, 4, 1); }
TEST_CASE("step gate child of rank 2", "[.][child]") { followAllRuns(3, 4, 2); }
TEST_CASE("step gate child of rank 3", "[.][child]") { followAllRuns(3, 4, 3); }

TEST_CASE("step gate: four processes stop every run at the same step", "[base][process]") {
  const ShmRegion region = StepGate::createRegion().value();
  const ShmRegion result = ShmRegion::create("entered", sizeof(Entered)).value();
  auto* entered = new (result.data()) Entered{};
  std::vector<std::unique_ptr<ChildTestCase>> children;
  for (const char* rank : {"1", "2", "3"}) {
    children.push_back(std::make_unique<ChildTestCase>(std::string("step gate child of rank ") + rank,
                                                       std::vector<int>{region.fd(), result.fd()}));
  }
  StepGate lead = gateOf(region.fd(), 0);
  std::mt19937 random(20240607);
  std::vector<uint32_t> expected;
  for (uint64_t run = 1; run <= kRuns; ++run) {
    const uint32_t stop_at = random() % (kSteps + 10);  // some runs are never stopped
    expected.push_back(enterSteps(lead, run, stop_at));
    CHECK(expected.back() == std::min(stop_at, kSteps));
  }
  for (auto& child : children)
    CHECK(child->wait(std::chrono::seconds(30)) == 0);
  for (uint32_t rank = 1; rank < 4; ++rank) {
    for (uint64_t run = 0; run < kRuns; ++run)
      CHECK(entered->steps[rank][run] == 1 + expected[run]);
  }
}

}  // namespace
}  // namespace latentd
