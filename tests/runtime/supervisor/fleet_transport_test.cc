#include <csignal>

#include "runtime/config/communication.h"
#include "runtime/supervisor/fleet.h"
#include "tests/runtime/supervisor/fleet_fixture.h"

namespace latentd::supervisor {
namespace {

using std::chrono::milliseconds;
namespace wire = internal::v1;
using Fixture = FleetFixture;

TEST_CASE("fleet: what carries scattered heads is what the ranks have found possible", "[supervisor]") {
  Fixture fixture({1, 2});
  config::GroupSpec& spec = fixture.topology.groups[1];
  spec.parallel.ulysses = 2;
  spec.ulysses_transport = config::UlyssesTransport::kShm;
  spec.ulysses_transport_reason = "its ranks are on the CPU";
  fixture.fleet.start();
  const auto shown = [&] {
    v1::Topology topology;
    fixture.fleet.fill(
        topology, [](GroupIndex) { return false; }, noPlace);
    CHECK(topology.groups(0).ulysses_transport().empty());
    return topology.groups(1).ulysses_transport() + ": " + topology.groups(1).ulysses_transport_reason();
  };
  const auto counted = [&](const std::string& transport) {
    return fixture.metrics.ulysses_info.with("g1", transport).Value();
  };
  const std::string obstacle = "rank 1: shared memory of 192 bytes: memfd_create: Operation not permitted";
  for (const uint32_t rank : {0u, 1u}) {
    fixture.registerWorker(Fixture::worker(1, rank));
    const wire::Communication& asked = fixture.link.sent.back().second.load().communication();
    CHECK(asked.ulysses_transport() == "shm");
    CHECK_FALSE(asked.ulysses_required());
    CHECK(shown() == "shm: its ranks are on the CPU");
    fixture.handled[Fixture::worker(1, rank)] = Epoch(1);
  }
  for (const uint32_t rank : {0u, 1u})
    fixture.ready(Fixture::worker(1, rank), "run", obstacle);
  CHECK(shown() == "c10d: its ranks cannot share memory: " + obstacle);
  CHECK(counted("c10d") == 1);
  CHECK(counted("shm") == 0);
  CHECK(fixture.registry.expose().find("ulysses_info{group=\"g0\"") == std::string::npos);

  // Each start finds out anew.
  fixture.exit(Fixture::worker(1, 1), {true, SIGKILL});
  fixture.reapKilled();
  fixture.clock.advance(milliseconds(100));
  fixture.fleet.onTimer();
  fixture.bringUp();
  CHECK(shown() == "shm: its ranks are on the CPU");
  CHECK(counted("c10d") == 0);
  CHECK(counted("shm") == 1);
}

TEST_CASE("fleet: ranks that the topology tells what carries scattered heads take nothing else", "[supervisor]") {
  Fixture fixture({1, 2});
  fixture.topology.groups[1].ulysses_transport = config::UlyssesTransport::kShm;
  fixture.topology.groups[1].ulysses_transport_reason = config::kToldCommunication;
  fixture.fleet.start();
  fixture.registerWorker(Fixture::worker(1, 0));
  CHECK(fixture.link.sent.back().second.load().communication().ulysses_required());
}

}  // namespace
}  // namespace latentd::supervisor
