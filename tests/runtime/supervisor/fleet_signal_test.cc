#include "runtime/supervisor/fleet.h"

#include <csignal>

#include "runtime/supervisor/limits.h"
#include "tests/runtime/supervisor/fleet_fixture.h"

// A worker that is sent SIGTERM or SIGINT tells it: a loss of its group, or part of the daemon's own end.
namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;
using std::chrono::milliseconds;
using Fixture = FleetFixture;

void signalled(Fixture& fixture, WorkerId worker, int number) {
  wire::WorkerEvent event = fixture.eventOf(worker);
  event.mutable_signalled()->set_signal_number(number);
  fixture.fleet.onEvent(fixture.connectionOf(worker), event);
}

TEST_CASE("fleet: a signal to one rank ends its group as a kill does, once it is known to be none to the daemon",
          "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.bringUp();
  fixture.host.work = "running job 12ab, step 3 of 16";
  signalled(fixture, Fixture::worker(1, 1), SIGTERM);
  signalled(fixture, Fixture::worker(1, 0), SIGINT);  // of the same group: it is lost by then
  CHECK(fixture.fleet.nextDeadline() == fixture.clock.now() + kDaemonSignalTimeout);
  CHECK(fixture.host.held.front() == std::pair{1U, true});
  fixture.clock.advance(kDaemonSignalTimeout - milliseconds(1));
  fixture.fleet.onTimer();
  CHECK(fixture.launcher.killed.empty());
  fixture.clock.advance(milliseconds(1));
  fixture.fleet.onTimer();
  CHECK(fixture.launcher.killed == std::vector<WorkerId>{Fixture::worker(1, 0), Fixture::worker(1, 1)});
  REQUIRE(fixture.host.lost.size() == 1);
  CHECK(fixture.host.lost[0].second.code() == absl::StatusCode::kUnavailable);
  CHECK(fixture.cause() == "g1 rank 1 (fake): died while running job 12ab, step 3 of 16: signal SIGTERM");
  CHECK(fixture.metrics.restarts.with("g1", "signal").Value() == 1);
  fixture.reapKilled();
  fixture.clock.advance(milliseconds(100));
  fixture.fleet.onTimer();
  fixture.bringUp();
  CHECK(fixture.fleet.allReady());
}

TEST_CASE("fleet: a signal to one rank while its group fails or starts", "[supervisor]") {
  Fixture fixture({2});
  fixture.fleet.start();
  SECTION("it dies of something else first") {
    fixture.bringUp();
    signalled(fixture, Fixture::worker(0, 0), SIGTERM);
    fixture.exit(Fixture::worker(0, 1), {true, SIGKILL});
    CHECK(fixture.cause().find("signal SIGKILL") != std::string::npos);
    signalled(fixture, Fixture::worker(0, 0), SIGTERM);
    fixture.reapKilled();
    fixture.clock.advance(milliseconds(100));
    fixture.fleet.onTimer();
    fixture.bringUp();
    fixture.clock.advance(kDaemonSignalTimeout);
    fixture.fleet.onTimer();
    CHECK(fixture.host.lost.size() == 1);
  }
  SECTION("it loads") {
    fixture.registerWorker(Fixture::worker(0, 0));
    signalled(fixture, Fixture::worker(0, 0), SIGINT);
    fixture.clock.advance(kDaemonSignalTimeout);
    fixture.fleet.onTimer();
    CHECK(fixture.cause() == "g0 rank 0 (fake), loading: died while loading: signal SIGINT");
    fixture.reapKilled();
    CHECK(fixture.host.failures.size() == 1);
  }
}

TEST_CASE("fleet: a signal that the daemon gets too is no matter of its workers", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.bringUp();
  signalled(fixture, Fixture::worker(0), SIGTERM);
  fixture.fleet.disregardSignals();
  signalled(fixture, Fixture::worker(1, 1), SIGTERM);
  CHECK(fixture.host.held == std::vector{std::pair{0U, true}, std::pair{0U, false}});
  fixture.clock.advance(kDaemonSignalTimeout);
  fixture.fleet.onTimer();
  CHECK(fixture.host.lost.empty());
  CHECK(fixture.launcher.killed.empty());
}

}  // namespace
}  // namespace latentd::supervisor
