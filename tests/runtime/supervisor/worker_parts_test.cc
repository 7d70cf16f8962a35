// The small parts of the workers' side: restart policy, health monitor, worker table, logs, edge ledger, shutdown.
#include <spdlog/sinks/ostream_sink.h>

#include <set>
#include <sstream>

#include "runtime/supervisor/edge_ledger.h"
#include "runtime/supervisor/health_monitor.h"
#include "runtime/supervisor/limits.h"
#include "runtime/supervisor/restart_policy.h"
#include "runtime/supervisor/shutdown.h"
#include "runtime/supervisor/worker_logs.h"
#include "runtime/supervisor/worker_table.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::supervisor {
namespace {

using std::chrono::milliseconds;

const WorkerId kWorker{GroupIndex(1), Rank(2)};

TEST_CASE("restart_policy: the delay doubles within its bounds and starts over after a stable life", "[supervisor]") {
  testing::ManualClock clock;
  const config::RestartSpec spec{.backoff_min = milliseconds(100),
                                 .backoff_max = milliseconds(350),
                                 .stable_after = milliseconds(1000),
                                 .failures_max = 0};
  RestartPolicy policy(spec, clock);
  for (const int expected : {100, 200, 350, 350})
    CHECK(policy.failed() == milliseconds(expected));
  policy.served();
  clock.advance(milliseconds(999));
  CHECK(policy.failed() == milliseconds(350));
  policy.served();
  clock.advance(milliseconds(1000));
  CHECK(policy.failed() == milliseconds(100));
}

TEST_CASE("restart_policy: gives up after so many failed starts in a row; serving ends the row", "[supervisor]") {
  const testing::ManualClock clock;
  const config::RestartSpec spec{.backoff_min = milliseconds(1),
                                 .backoff_max = milliseconds(1),
                                 .stable_after = milliseconds(1000),
                                 .failures_max = 3};
  RestartPolicy policy(spec, clock);
  CHECK(policy.failed());
  CHECK(policy.failed());
  policy.served();
  CHECK(policy.failed());
  CHECK(policy.failed());
  CHECK(policy.failed());
  CHECK(!policy.failed());
}

TEST_CASE("health_monitor: a phase has its deadline, named, with what it was doing", "[supervisor]") {
  testing::ManualClock clock;
  HealthMonitor health(clock, milliseconds(1000));
  CHECK(health.nextDeadline() == Clock::TimePoint::max());
  health.expect(kWorker, "loading (deadlines.load)", milliseconds(500));
  health.note(kWorker, "40 %, model.safetensors");
  clock.advance(milliseconds(499));
  CHECK(health.takeOverdue().empty());
  clock.advance(milliseconds(1));
  CHECK(health.nextDeadline() <= clock.now());
  const auto overdue = health.takeOverdue();
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].reason == "deadline");
  CHECK(messageOf(overdue[0].cause) == "loading (deadlines.load) took longer than 0.5 s, at 40 %, model.safetensors");
  CHECK(health.takeOverdue().empty());
}

TEST_CASE("health_monitor: a silence in which the daemon itself stood still is excused once", "[supervisor]") {
  testing::ManualClock clock;
  HealthMonitor health(clock, milliseconds(1000));
  health.heartbeat(kWorker);
  clock.advance(milliseconds(5000));
  CHECK(health.takeOverdue().empty());
  CHECK(health.nextDeadline() == clock.now() + milliseconds(1000));
  clock.advance(milliseconds(5000));
  CHECK(health.takeOverdue().size() == 1);
  // Whoever was heard again may be excused again.
  health.heartbeat(kWorker);
  clock.advance(milliseconds(5000));
  CHECK(health.takeOverdue().empty());
}

TEST_CASE("health_monitor: silence counts from the last heartbeat", "[supervisor]") {
  testing::ManualClock clock;
  HealthMonitor health(clock, milliseconds(1000));
  health.heartbeat(kWorker);
  clock.advance(milliseconds(900));
  health.heartbeat(kWorker);
  clock.advance(milliseconds(999));
  CHECK(health.fresh(kWorker));
  CHECK(health.takeOverdue().empty());
  clock.advance(milliseconds(1));
  CHECK(!health.fresh(kWorker));
  const auto overdue = health.takeOverdue();
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].reason == "heartbeat");
  health.heartbeat(kWorker);
  health.forget(kWorker);
  CHECK(health.nextDeadline() == Clock::TimePoint::max());
  CHECK(health.fresh(kWorker));
}

TEST_CASE("health_monitor: a worker that starts may be silent for longer, and not once it is ready", "[supervisor]") {
  testing::ManualClock clock;
  HealthMonitor health(clock, milliseconds(1000));
  health.heartbeat(kWorker);
  health.expect(kWorker, "loading (deadlines.load)", milliseconds(60'000));
  clock.advance(milliseconds(5999));
  CHECK(health.takeOverdue().empty());
  health.heartbeat(kWorker);
  health.expect(kWorker, "warming up (deadlines.warm_up)", milliseconds(60'000));
  clock.advance(milliseconds(5999));
  CHECK(health.takeOverdue().empty());
  clock.advance(milliseconds(1));
  auto overdue = health.takeOverdue();
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].reason == "heartbeat");
  CHECK(messageOf(overdue[0].cause) == "no heartbeat for 6 s (6 times deadlines.heartbeat_miss)");
  health.heartbeat(kWorker);
  health.settle(kWorker);
  clock.advance(milliseconds(1000));
  overdue = health.takeOverdue();
  REQUIRE(overdue.size() == 1);
  CHECK(messageOf(overdue[0].cause) == "no heartbeat for 1 s (deadlines.heartbeat_miss)");
}

TEST_CASE("worker_table: a worker may end in every phase, and only starts from none", "[supervisor]") {
  for (const WorkerPhase phase : {WorkerPhase::kStarting, WorkerPhase::kLoading, WorkerPhase::kWarmingUp,
                                  WorkerPhase::kReady, WorkerPhase::kStopping, WorkerPhase::kKilled}) {
    CHECK(canFollow(phase, WorkerPhase::kAbsent));
    CHECK(!canFollow(phase, WorkerPhase::kStarting));
    CHECK(canFollow(phase, WorkerPhase::kKilled) == (phase != WorkerPhase::kKilled));
  }
  CHECK(!canFollow(WorkerPhase::kStarting, WorkerPhase::kReady));
  CHECK(!canFollow(WorkerPhase::kReady, WorkerPhase::kLoading));
  WorkerTable table(2);
  table.enter(Rank(0), WorkerPhase::kStarting);
  table.at(Rank(0)).resident_bytes = 5;
  CHECK(!table.all(WorkerPhase::kStarting));
  table.enter(Rank(0), WorkerPhase::kAbsent);
  CHECK(table.at(Rank(0)).resident_bytes == 0);
}

TEST_CASE("worker_logs: our own lines lose what the daemon adds again, others pass as they are", "[supervisor]") {
  const LogLine ours = parseLogLine("2026-01-02 03:04:05.678 W denoise/0 stage: slow");
  CHECK(ours.level == spdlog::level::warn);
  CHECK(ours.text == "stage: slow");
  for (const char* line : {"terminate called", "2026-01-02 03:04:05.678 X denoise/0 stage: slow", "2026-01-02", "",
                           "2026-01-02 03:04:05.678 W", "2026-01-02T03:04:05.678 W d s: x"}) {
    CHECK(parseLogLine(line).level == spdlog::level::info);
    CHECK(parseLogLine(line).text == line);
  }
}

TEST_CASE("worker_logs: lines are put together, bounded in length and in number", "[supervisor]") {
  std::ostringstream sink;
  WorkerLogs logs(std::make_shared<spdlog::logger>("x", std::make_shared<spdlog::sinks::ostream_sink_mt>(sink)));
  logs.append("hal");
  logs.append("f\nwhole\n\npart");
  CHECK(logs.lastLines() == std::deque<std::string>{"half", "whole"});
  logs.finish();
  CHECK(logs.lastLines().back() == "part");
  logs.append(std::string(3 * kLogLineBytesMax, 'x'));
  logs.append("yyy\nnext\n");
  CHECK(logs.lastLines().back() == "next");
  CHECK(logs.lastLines()[logs.lastLines().size() - 2] == std::string(kLogLineBytesMax, 'x'));
  for (int line = 0; line < 100; ++line)
    logs.append(std::to_string(line) + "\n");
  CHECK(logs.lastLines().size() == kLogLinesKept);
  CHECK(logs.lastLines().back() == "99");
}

TEST_CASE("edge_ledger: numbers ascend, credits come back when every rank has settled", "[supervisor]") {
  EdgeLedger ledger(2);
  CHECK(!ledger.hasCredit());
  ledger.open(ChannelId(7), 2);
  CHECK(ledger.promise("a") == SequenceNumber(0));
  CHECK(ledger.promise("b") == SequenceNumber(1));
  CHECK(!ledger.hasCredit());
  ledger.settle(SequenceNumber(0), Rank(0));
  ledger.settle(SequenceNumber(0), Rank(0));
  ledger.settle(SequenceNumber(0), Rank(5));
  ledger.settle(SequenceNumber(9), Rank(0));
  CHECK(!ledger.hasCredit());
  ledger.settle(SequenceNumber(0), Rank(1));
  CHECK(ledger.hasCredit());
  CHECK(!ledger.isOutstanding(ChannelId(7), SequenceNumber(0)));
  CHECK(ledger.isOutstanding(ChannelId(7), SequenceNumber(1)));
  CHECK(!ledger.isOutstanding(ChannelId(6), SequenceNumber(1)));
  CHECK(ledger.jobOf(SequenceNumber(0)) == "a");
  CHECK(!ledger.jobOf(SequenceNumber(2)));
}

TEST_CASE("edge_ledger: a new channel starts over with all credits", "[supervisor]") {
  EdgeLedger ledger(1);
  ledger.open(ChannelId(1), 1);
  ledger.promise("a");
  ledger.close();
  CHECK(!ledger.isOpen());
  ledger.open(ChannelId(2), 1);
  ledger.settle(SequenceNumber(0), Rank(0));
  CHECK(ledger.promise("b") == SequenceNumber(0));
  CHECK(ledger.jobOf(SequenceNumber(0)) == "b");
}

TEST_CASE("edge_ledger: what is remembered of past transfers is bounded", "[supervisor]") {
  EdgeLedger ledger(1);
  ledger.open(ChannelId(1), 1);
  for (uint64_t number = 0; number < 1000; ++number) {
    ledger.promise(std::to_string(number));
    ledger.settle(SequenceNumber(number), Rank(0));
  }
  CHECK(ledger.jobOf(SequenceNumber(999)) == "999");
  CHECK(!ledger.jobOf(SequenceNumber(999 - kTransfersRemembered - 1)));
}

TEST_CASE("shutdown: phases end when nothing is left, or at their deadlines, within the grace", "[supervisor]") {
  using Phase = Shutdown::Phase;
  testing::ManualClock clock;
  Shutdown shutdown(clock, milliseconds(10000));
  CHECK(!shutdown.advance(true));
  CHECK(shutdown.nextDeadline() == Clock::TimePoint::max());
  const auto start = clock.now();
  shutdown.interrupt();
  CHECK(shutdown.phase() == Phase::kDraining);
  CHECK(!shutdown.advance(false));
  clock.advanceTo(shutdown.nextDeadline());
  CHECK(shutdown.advance(false));
  CHECK(shutdown.phase() == Phase::kCancelling);
  CHECK(!shutdown.advance(false));
  clock.advanceTo(shutdown.nextDeadline());
  CHECK(shutdown.advance(false));
  CHECK(shutdown.phase() == Phase::kStoppingWorkers);
  CHECK(clock.now() + shutdown.workerGrace() - start < milliseconds(10000));
  CHECK(!shutdown.advance(true));
}

TEST_CASE("shutdown: a signal shortens a drain, and a drain does not lengthen a signal's", "[supervisor]") {
  testing::ManualClock clock;
  Shutdown shutdown(clock, milliseconds(10000));
  shutdown.drain(std::chrono::hours(1));
  CHECK(shutdown.nextDeadline() == clock.now() + std::chrono::hours(1));
  shutdown.interrupt();
  CHECK(shutdown.nextDeadline() < clock.now() + milliseconds(10000));
  const auto deadline = shutdown.nextDeadline();
  shutdown.drain(std::chrono::hours(1));
  CHECK(shutdown.nextDeadline() == deadline);
  CHECK(shutdown.advance(true));
}

}  // namespace
}  // namespace latentd::supervisor
