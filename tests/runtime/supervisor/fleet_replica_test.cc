#include "tests/runtime/supervisor/fleet_fixture.h"

namespace latentd::supervisor {
namespace {

using std::chrono::milliseconds;
using Fixture = FleetFixture;

}  // namespace

TEST_CASE("fleet: one replica of each stage is enough to serve, once all have been there", "[supervisor][replica]") {
  Fixture fixture({1, 1}, {1, 2});
  fixture.fleet.start();
  for (const uint32_t group : {0U, 1U}) {
    fixture.handled[Fixture::worker(group)] = Epoch(1);
    fixture.registerWorker(Fixture::worker(group));
    fixture.ready(Fixture::worker(group));
  }
  fixture.answerChannels();
  CHECK(fixture.host.edges_open == 1);
  CHECK(fixture.host.ready == 0);
  CHECK(messageOf(fixture.fleet.readiness()).find("g1.1 is not ready") == 0);
  fixture.bringUp();
  CHECK(fixture.host.edges_open == 2);
  CHECK(fixture.host.ready == 1);
  CHECK(fixture.fleet.readiness().ok());

  fixture.exit(Fixture::worker(1), {true, SIGSEGV});
  CHECK(fixture.cause().find("g1.0 rank 0 (fake): died while ready") == 0);
  CHECK(fixture.fleet.readiness().ok());
  fixture.exit(Fixture::worker(2), {true, SIGSEGV});
  CHECK(messageOf(fixture.fleet.readiness()).find("g1.0 is not ready") == 0);
  fixture.clock.advance(milliseconds(100));
  fixture.fleet.onTimer();
  CHECK(fixture.launcher.running.at(Fixture::worker(2)) == Epoch(2));
  fixture.answerChannels();  // the survivor retires the former channels
  fixture.handled[Fixture::worker(2)] = Epoch(2);
  fixture.registerWorker(Fixture::worker(2));
  fixture.ready(Fixture::worker(2));
  CHECK(messageOf(fixture.fleet.readiness()) == "edge g0.run->g1.run is not open");
  fixture.answerChannels();
  CHECK(fixture.fleet.readiness().ok());
  CHECK(fixture.host.ready == 1);
  fixture.bringUp();
  CHECK(fixture.host.ready == 2);
  CHECK(fixture.host.failures.empty());
}

TEST_CASE("fleet: a replica that serves again has its failures forgotten while another one is down",
          "[supervisor][replica]") {
  Fixture fixture({1}, {2});
  fixture.fleet.start();
  fixture.bringUp();
  fixture.exit(Fixture::worker(1), {false, 1});  // and is not heard of again
  for (int death = 0; death < 5; ++death) {
    fixture.exit(Fixture::worker(0), {false, 1});
    for (int turn = 0; turn < 10 && fixture.launcher.running.count(Fixture::worker(0)) == 0; ++turn) {
      fixture.clock.advance(milliseconds(200));
      fixture.fleet.onTimer();
    }
    fixture.registerWorker(Fixture::worker(0));
    fixture.ready(Fixture::worker(0));
  }
  CHECK(fixture.host.failures.empty());
}

TEST_CASE("fleet: the replicas of a stage end side by side", "[supervisor][replica]") {
  Fixture fixture({1, 1}, {2, 2});
  fixture.fleet.start();
  fixture.bringUp();
  int done = 0;
  const auto start = fixture.clock.now();
  fixture.fleet.shutDown(milliseconds(300), [&] { ++done; });
  fixture.answerChannels();
  fixture.exit(Fixture::worker(2), {false, 0});
  const auto stopping = [&](uint32_t group) {
    v1::Topology topology;
    fixture.fleet.fill(
        topology, [](GroupIndex) { return false; }, noPlace);
    return topology.groups(static_cast<int>(group)).workers(0).state() == v1::WORKER_STATE_STOPPING;
  };
  CHECK(stopping(3));
  CHECK_FALSE(stopping(0));
  fixture.clock.advance(milliseconds(100));
  fixture.fleet.onTimer();
  CHECK(fixture.launcher.killed == std::vector<WorkerId>{Fixture::worker(3)});
  CHECK(stopping(0));
  CHECK(stopping(1));
  for (const uint32_t group : {3U, 1U, 0U})
    fixture.exit(Fixture::worker(group), {false, 0});
  CHECK(done == 1);
  CHECK(fixture.clock.now() - start == milliseconds(100));
}

}  // namespace latentd::supervisor
