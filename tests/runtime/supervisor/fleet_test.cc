#include "runtime/supervisor/fleet.h"

#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "runtime/base/flight_recorder.h"
#include "runtime/base/nanoseconds.h"
#include "runtime/supervisor/limits.h"
#include "tests/runtime/supervisor/fleet_fixture.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;
using std::chrono::milliseconds;
using Fixture = FleetFixture;

TEST_CASE("fleet: register, load, warm up, ready, channels, serving", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  CHECK(fixture.launcher.running.size() == 3);
  fixture.registerWorker(Fixture::worker(0));
  REQUIRE(fixture.link.sent.size() == 1);
  const wire::Load& load = fixture.link.sent[0].second.load();
  CHECK(load.group() == "g0");
  CHECK(load.stage() == "fake");
  CHECK(load.step_gate_id() == 0);
  CHECK(load.heartbeat_interval_ms() == 100);
  fixture.phase(Fixture::worker(0), "warming up");
  CHECK(fixture.fleet.readiness().message().find("warming up 50 %") != absl::string_view::npos);
  fixture.ready(Fixture::worker(0));
  CHECK(fixture.host.ready == 0);
  fixture.handled[Fixture::worker(0)] = Epoch(1);
  fixture.registerWorker(Fixture::worker(1, 0));
  CHECK(fixture.link.sent.back().second.load().step_gate_id() == UINT64_MAX);  // two ranks share one
  fixture.ready(Fixture::worker(1, 0));
  CHECK(fixture.host.edges_open == 0);
  fixture.registerWorker(Fixture::worker(1, 1));
  fixture.ready(Fixture::worker(1, 1));
  fixture.answerChannels();
  CHECK(fixture.host.edges_open == 1);
  CHECK(fixture.host.ready == 1);
  CHECK(fixture.fleet.allReady());
  CHECK(fixture.metrics.up.with("g1", "1").Value() == 1);
  v1::Topology topology;
  fixture.fleet.fill(
      topology, [](GroupIndex group) { return group.value == 0; },
      [](const config::GroupSpec& spec, Rank rank) -> Place {
        if (spec.ranks() == 1) return {};
        return {{"tp", rank.value}};
      });
  CHECK(topology.groups(0).workers(0).place().empty());
  REQUIRE(topology.groups(1).workers(1).place_size() == 1);
  CHECK(topology.groups(1).workers(1).place(0).dimension() == "tp");
  CHECK(topology.groups(1).workers(1).place(0).index() == 1);
  CHECK(topology.groups(0).workers(0).state() == v1::WORKER_STATE_BUSY);
  CHECK(topology.groups(1).workers(1).state() == v1::WORKER_STATE_READY);
}

TEST_CASE("fleet: the ranks of an epoch share memory and a folder, which go with it", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.registerWorker(Fixture::worker(0));
  CHECK_FALSE(fixture.link.sent.back().second.load().has_communication());
  CHECK(fixture.launcher.descriptors.empty());
  const auto registered = [&] {
    fixture.registerWorker(Fixture::worker(1, 0));
    return fixture.link.sent.back().second.load().communication();
  };
  const wire::Communication first = registered();
  CHECK(first.flight_recorder_id() == kFlightRecorderId);
  CHECK(first.timeout_ms() == 700);
  CHECK(first.start_timeout_ms() == 10000);
  const std::filesystem::path store = first.rendezvous_file();
  CHECK(store.parent_path().parent_path() == fixture.folder.path());
  CHECK(std::filesystem::is_empty(store.parent_path()));
  fixture.ready(Fixture::worker(0));
  fixture.handled[Fixture::worker(0)] = fixture.handled[Fixture::worker(1, 0)] = Epoch(1);
  fixture.ready(Fixture::worker(1, 0));
  fixture.bringUp();
  fixture.exit(Fixture::worker(1, 1), {true, SIGKILL});
  CHECK(std::filesystem::exists(store.parent_path()));  // a rank is left
  fixture.reapKilled();
  CHECK_FALSE(std::filesystem::exists(store.parent_path()));
  fixture.clock.advance(milliseconds(100));
  fixture.fleet.onTimer();
  CHECK(registered().rendezvous_file() != first.rendezvous_file());
}

TEST_CASE("fleet: what the ranks of a group do can be read while they do it, and counts", "[supervisor]") {
  Fixture fixture({1, 2});
  fixture.fleet.start();
  fixture.bringUp();
  ShmRegion region =
      ShmRegion::map(duplicateFd(fixture.launcher.descriptors.at(kFlightRecorderId).get()).value(), 1).value();
  FlightRecorder rank = FlightRecorder::attach(std::move(region), Rank(1)).value();
  Operation operation{.kind = "all_reduce", .group = "world", .members = 3, .sequence = 1, .bytes_sent = 80};
  rank.begin(operation);
  wire::WorkerEvent beat = fixture.eventOf(Fixture::worker(1, 1));
  beat.mutable_heartbeat();
  for (int twice = 0; twice < 2; ++twice)
    fixture.fleet.onEvent(fixture.connectionOf(Fixture::worker(1, 1)), beat);
  CHECK(fixture.metrics.mesh_operations.with("g1", "1").Value() == 1);
  CHECK(fixture.metrics.mesh_bytes.with("g1", "1").Value() == 80);

  const v1::FlightRecords records = fixture.fleet.flightRecords("").value();
  REQUIRE(records.groups_size() == 1);
  CHECK(records.groups(0).group() == "g1");
  CHECK(records.groups(0).epoch() == 1);
  CHECK_FALSE(records.groups(0).ended());
  CHECK(records.groups(0).verdict().find("rank 1 waits in all_reduce 1 of world for ") == 0);
  CHECK(records.groups(0).ranks(1).recent(0).bytes_sent() == 80);
  CHECK(fixture.fleet.flightRecords("g1").value().groups_size() == 1);
  CHECK(fixture.fleet.flightRecords("g0").status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(fixture.fleet.flightRecords("g9").status() == absl::NotFoundError("there is no group \"g9\"; groups: g0, g1"));

  operation.sequence = 2;
  rank.begin(operation);
  fixture.exit(Fixture::worker(1, 0), {true, SIGKILL});
  fixture.reapKilled();
  CHECK(fixture.metrics.mesh_operations.with("g1", "1").Value() == 2);
  CHECK(fixture.fleet.flightRecords("g1").value().groups(0).ended());
  CHECK(fixture.fleet.flightRecords("g1").value().groups(0).ranks(1).operations() == 2);
}

TEST_CASE("fleet: what ranks had done when their group failed is kept until it fails again", "[supervisor]") {
  Fixture fixture({1, 2});
  fixture.fleet.start();
  fixture.bringUp();
  // Rank 1 begins so many operations and waits; a second later rank 0 dies.
  const auto fail = [&](uint64_t operations) {
    ShmRegion region =
        ShmRegion::map(duplicateFd(fixture.launcher.descriptors.at(kFlightRecorderId).get()).value(), 1).value();
    FlightRecorder rank = FlightRecorder::attach(std::move(region), Rank(1)).value();
    for (uint64_t sequence = 1; sequence <= operations; ++sequence) {
      rank.begin({.kind = "all_reduce",
                  .group = "world",
                  .members = 3,
                  .sequence = sequence,
                  .submitted_ns = toNanoseconds(fixture.clock.now())});
    }
    fixture.clock.advance(milliseconds(1000));
    fixture.exit(Fixture::worker(1, 0), {true, SIGKILL});
    fixture.reapKilled();
  };
  fail(3);
  const auto records = [&] { return fixture.fleet.flightRecords("g1").value(); };
  const v1::GroupRecord first = records().groups(0);
  CHECK(first.verdict() == "rank 1 waits in all_reduce 1 of world for 1.00 s, which rank 0 has not begun");
  CHECK(first.cause().code() == static_cast<int>(absl::StatusCode::kUnavailable));
  CHECK(first.cause().message().find("g1 rank 0 (fake): died") == 0);
  CHECK(first.ended_ns() == toNanoseconds(fixture.clock.now()));
  CHECK(first.end_time().seconds() == fixture.clock.wallNow().time_since_epoch().count() / std::nano::den);

  // It is back: the present epoch first, then that one, as it was.
  fixture.clock.advance(milliseconds(5000));
  fixture.fleet.onTimer();
  fixture.bringUp();
  REQUIRE(records().groups_size() == 2);
  CHECK(records().groups(0).epoch() == 2);
  CHECK_FALSE(records().groups(0).ended());
  CHECK(records().groups(0).ranks(1).operations() == 0);
  CHECK(records().groups(1).SerializeAsString() == first.SerializeAsString());

  fail(1);
  REQUIRE(records().groups_size() == 1);
  CHECK(records().groups(0).epoch() == 2);
  CHECK(records().groups(0).ranks(1).operations() == 1);
}

TEST_CASE("fleet: a rank that waited in vain is told with whom it waited for, and by which deadline", "[supervisor]") {
  Fixture fixture({2});
  fixture.fleet.start();
  fixture.bringUp();
  const auto failed = [&](absl::StatusCode code, bool of_peer) {
    wire::WorkerEvent event = fixture.eventOf(Fixture::worker(0, 0));
    event.mutable_failed()->mutable_status()->set_code(static_cast<int>(code));
    event.mutable_failed()->mutable_status()->set_message("not done within 700 ms");
    event.mutable_failed()->set_of_peer(of_peer);
    fixture.fleet.onEvent(fixture.connectionOf(Fixture::worker(0, 0)), event);
    return fixture.host.last_report.failed().status().message();
  };
  CHECK(failed(absl::StatusCode::kDeadlineExceeded, true) == "not done within 700 ms (deadlines.collective)");
  ShmRegion region =
      ShmRegion::map(duplicateFd(fixture.launcher.descriptors.at(kFlightRecorderId).get()).value(), 1).value();
  FlightRecorder::attach(std::move(region), Rank(0))
      .value()
      .begin({.kind = "all_reduce",
              .group = "tp",
              .members = 3,
              .sequence = 536,
              .submitted_ns = toNanoseconds(fixture.clock.now())});
  fixture.clock.advance(milliseconds(700));
  CHECK(failed(absl::StatusCode::kDeadlineExceeded, true) ==
        "not done within 700 ms (deadlines.collective); rank 0 waits in all_reduce 536 of tp for 0.70 s, which rank 1 "
        "has not begun");
  // Its own deadlines, and other failures, are no matter of the others.
  CHECK(failed(absl::StatusCode::kDeadlineExceeded, false) == "not done within 700 ms");
  CHECK(failed(absl::StatusCode::kUnavailable, true) == "not done within 700 ms");
}

// A rank that could not start because of another one.
void fatalOfPeer(Fixture& fixture, WorkerId worker) {
  wire::WorkerEvent fatal = fixture.eventOf(worker);
  fatal.mutable_fatal()->mutable_status()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
  fatal.mutable_fatal()->mutable_status()->set_message("a peer closed the connection");
  fatal.mutable_fatal()->set_of_peer(true);
  fixture.fleet.onEvent(fixture.connectionOf(worker), fatal);
}

TEST_CASE("fleet: what a rank met of another gives way to the cause", "[supervisor]") {
  for (const bool killed : {true, false}) {
    Fixture fixture({2});
    fixture.fleet.start();
    for (const uint32_t rank : {0, 1})
      fixture.registerWorker(Fixture::worker(0, rank));
    fatalOfPeer(fixture, Fixture::worker(0, 0));
    CHECK(fixture.host.lost.empty());
    CHECK(fixture.fleet.nextDeadline() == fixture.clock.now() + kSuspicionTimeout);
    fixture.exit(Fixture::worker(0, 0), {false, 1});  // as it said
    CHECK(fixture.host.lost.empty());
    if (killed) {
      fixture.exit(Fixture::worker(0, 1), {true, SIGKILL});
    } else {
      wire::WorkerEvent fatal = fixture.eventOf(Fixture::worker(0, 1));
      fatal.mutable_fatal()->mutable_status()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
      fixture.fleet.onEvent(fixture.connectionOf(Fixture::worker(0, 1)), fatal);
    }
    REQUIRE(fixture.host.lost.size() == 1);
    CHECK(fixture.cause().find("g0 rank 1 (fake)") == 0);
  }
}

TEST_CASE("fleet: what a rank met of another is the cause if nobody says more", "[supervisor]") {
  Fixture fixture({2});
  fixture.fleet.start();
  for (const uint32_t rank : {0, 1})
    fixture.registerWorker(Fixture::worker(0, rank));
  fatalOfPeer(fixture, Fixture::worker(0, 1));
  fixture.clock.advance(kSuspicionTimeout);
  fixture.fleet.onTimer();
  REQUIRE(fixture.host.lost.size() == 1);
  CHECK(fixture.cause() == "g0 rank 1 (fake), loading: a peer closed the connection");

  Fixture all({2});
  all.fleet.start();
  for (const uint32_t rank : {0, 1})
    all.registerWorker(Fixture::worker(0, rank));
  for (const uint32_t rank : {1, 0})
    fatalOfPeer(all, Fixture::worker(0, rank));
  for (const uint32_t rank : {0, 1})
    all.exit(Fixture::worker(0, rank), {false, 1});
  REQUIRE(all.host.lost.size() == 1);  // there is nobody left to wait for
  CHECK(all.cause().find("g0 rank 1 (fake)") == 0);
}

TEST_CASE("fleet: a group of which a rank met the end of another is replaced, with the cause if it comes",
          "[supervisor]") {
  for (const bool told : {true, false}) {
    Fixture fixture({2});
    fixture.fleet.start();
    fixture.bringUp();
    fixture.fleet.suspect(GroupIndex(0), absl::UnavailableError("a peer closed the connection"));
    CHECK(fixture.launcher.killed.empty());
    if (told) {
      fixture.exit(Fixture::worker(0, 1), {true, SIGKILL});
      CHECK(fixture.cause().find("signal SIGKILL") != std::string::npos);
    } else {
      fixture.clock.advance(kSuspicionTimeout);
      fixture.fleet.onTimer();
      CHECK(fixture.cause() == "g0: a peer closed the connection");
      CHECK(fixture.metrics.restarts.with("g0", "recycle").Value() == 1);
    }
    fixture.reapKilled();
    CHECK(fixture.host.lost.size() == 1);
    fixture.clock.advance(milliseconds(100));
    fixture.fleet.onTimer();
    CHECK(fixture.launcher.launches == 4);
  }
}

TEST_CASE("fleet: a first start is all or nothing, with the first cause", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.registerWorker(Fixture::worker(0));
  fixture.registerWorker(Fixture::worker(1, 1));
  wire::WorkerEvent fatal = fixture.eventOf(Fixture::worker(1, 1));
  fatal.mutable_fatal()->mutable_status()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
  fatal.mutable_fatal()->mutable_status()->set_message("model.safetensors is missing");
  fixture.fleet.onEvent(fixture.connectionOf(Fixture::worker(1, 1)), fatal);
  // Its sibling is killed at once; what follows is a consequence and changes no cause.
  CHECK(fixture.launcher.killed == std::vector<WorkerId>{Fixture::worker(1, 0), Fixture::worker(1, 1)});
  fixture.exit(Fixture::worker(1, 1), {false, 1});
  CHECK(fixture.host.failures.empty());
  fixture.exit(Fixture::worker(1, 0), {true, SIGKILL});
  REQUIRE(fixture.host.failures.size() == 1);
  CHECK(fixture.host.failures[0].code() == absl::StatusCode::kNotFound);
  CHECK(messageOf(fixture.host.failures[0]) == "g1 rank 1 (fake), loading: model.safetensors is missing");
  // The other groups have no use any more.
  CHECK(std::find(fixture.launcher.killed.begin(), fixture.launcher.killed.end(), Fixture::worker(0)) !=
        fixture.launcher.killed.end());
  CHECK(fixture.launcher.launches == 3);
}

TEST_CASE("fleet: of several groups that fail to start the first is told, whoever is reaped first", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.registerWorker(Fixture::worker(1, 1));
  wire::WorkerEvent fatal = fixture.eventOf(Fixture::worker(1, 1));
  fatal.mutable_fatal()->mutable_status()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
  fixture.fleet.onEvent(fixture.connectionOf(Fixture::worker(1, 1)), fatal);
  fixture.exit(Fixture::worker(0), {true, SIGSEGV});
  REQUIRE(fixture.host.failures.size() == 1);
  CHECK(fixture.host.failures[0].code() == absl::StatusCode::kNotFound);
}

TEST_CASE("fleet: a program that cannot start fails the daemon at once", "[supervisor]") {
  Fixture fixture;
  fixture.launcher.launch_status = absl::NotFoundError("start /x/latent-worker");
  fixture.fleet.start();
  REQUIRE(fixture.host.failures.size() == 1);
  CHECK(fixture.launcher.launches == 1);
}

TEST_CASE("fleet: every phase of a start has its deadline", "[supervisor]") {
  for (const std::string phase : {"starting", "loading", "warming up"}) {
    Fixture fixture({1});
    fixture.fleet.start();
    if (phase != "starting") fixture.registerWorker(Fixture::worker(0));
    if (phase == "warming up") fixture.phase(Fixture::worker(0), phase);
    const milliseconds limit(phase == "warming up" ? 5000 : 10000);
    for (milliseconds passed{0}; passed < limit; passed += milliseconds(500)) {
      CHECK(fixture.host.lost.empty());
      fixture.clock.advance(milliseconds(500));
      if (phase != "starting") {
        wire::WorkerEvent beat = fixture.eventOf(Fixture::worker(0));
        beat.mutable_heartbeat();
        fixture.fleet.onEvent(fixture.connectionOf(Fixture::worker(0)), beat);
      }
      fixture.fleet.onTimer();
    }
    REQUIRE(fixture.host.lost.size() == 1);
    CHECK(fixture.host.lost[0].second.code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(fixture.cause().find(phase) != std::string::npos);
    CHECK(fixture.metrics.restarts.with("g0", "deadline").Value() == 1);
  }
}

TEST_CASE("fleet: a silent worker is killed with its group", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.bringUp();
  fixture.clock.advance(milliseconds(1000));
  fixture.fleet.onTimer();
  CHECK(fixture.host.lost.size() == 2);
  CHECK(fixture.cause().find("no heartbeat") != std::string::npos);
  CHECK(fixture.metrics.restarts.with("g1", "heartbeat").Value() == 1);
}

TEST_CASE("fleet: a death kills the siblings and is explained; the next start waits until all are reaped",
          "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.bringUp();
  fixture.exit(Fixture::worker(1, 1), {true, SIGSEGV}, {"first line", "last line"});
  CHECK(fixture.launcher.killed == std::vector<WorkerId>{Fixture::worker(1, 0)});
  CHECK(fixture.host.lost.size() == 1);
  for (const char* part : {"g1 rank 1", "died while ready", "signal SIGSEGV", "first line\n  last line"}) {
    CHECK(fixture.cause().find(part) != std::string::npos);
  }
  CHECK(!fixture.fleet.allReady());
  // Not before its sibling is reaped, however late that is, and no timer spins until then.
  fixture.clock.advance(milliseconds(300));
  CHECK(fixture.fleet.nextDeadline() > fixture.clock.now());
  fixture.fleet.onTimer();
  CHECK(fixture.launcher.launches == 3);
  fixture.reapKilled();
  CHECK(fixture.fleet.nextDeadline() <= fixture.clock.now());
  fixture.fleet.onTimer();
  CHECK(fixture.launcher.launches == 5);
}

TEST_CASE("fleet: a worker that has no process has the number 0", "[supervisor]") {
  Fixture fixture;
  const auto pidOf = [&](int group) {
    v1::Topology topology;
    fixture.fleet.fill(
        topology, [](GroupIndex) { return false; }, noPlace);
    return topology.groups(group).workers(0).pid();
  };
  CHECK(pidOf(0) == 0);
  fixture.fleet.start();
  fixture.bringUp();
  CHECK(pidOf(0) == fixture.launcher.pid(Fixture::worker(0)));
  fixture.exit(Fixture::worker(0), {true, SIGKILL});
  CHECK(pidOf(0) == 0);
  CHECK(pidOf(1) > 0);
}

TEST_CASE("fleet: the sockets of a channel go with the producers that were lost", "[supervisor]") {
  Fixture fixture({2, 1});
  fixture.fleet.start();
  fixture.bringUp();
  const auto socket = [&](int channel, int rank) {
    return std::filesystem::path(fixture.folder.path()) / fmt::format("c{}-{}.sock", channel, rank);
  };
  const auto listen = [&](int channel, int rank) { std::ofstream(socket(channel, rank)); };
  for (const int rank : {0, 1})
    listen(1, rank);
  fixture.exit(Fixture::worker(0, 0), {true, SIGKILL});
  for (const int rank : {0, 1})
    CHECK_FALSE(std::filesystem::exists(socket(1, rank)));
  listen(1, 1);  // it was about to when it was killed
  const auto restart = [&] {
    fixture.reapKilled();
    fixture.clock.advance(milliseconds(300));
    fixture.fleet.onTimer();
    fixture.bringUp();
  };
  restart();
  CHECK_FALSE(std::filesystem::exists(socket(1, 1)));

  // Who lives unlinks its own, unless it is lost before it does.
  for (const int rank : {0, 1})
    listen(2, rank);
  fixture.exit(Fixture::worker(1), {true, SIGKILL});
  CHECK(std::filesystem::exists(socket(2, 0)));
  fixture.exit(Fixture::worker(0, 1), {true, SIGKILL});
  for (const int rank : {0, 1})
    CHECK_FALSE(std::filesystem::exists(socket(2, rank)));
  restart();
  CHECK(fixture.fleet.allReady());
}

TEST_CASE("fleet: a death in the middle of a job names the job, and one at the start its memory limit",
          "[supervisor]") {
  Fixture fixture({1});
  fixture.topology.groups[0].memory_bytes_max = uint64_t{300} << 20;
  fixture.fleet.start();
  fixture.bringUp();
  fixture.host.work = "running job 12ab, step 3 of 10";
  fixture.exit(Fixture::worker(0), {true, SIGSEGV});
  CHECK(fixture.cause().find("died while running job 12ab, step 3 of 10: signal SIGSEGV") != std::string::npos);
  CHECK(fixture.cause().find("memory_max") == std::string::npos);

  Fixture limited({1});
  limited.topology.groups[0].memory_bytes_max = uint64_t{300} << 20;
  limited.fleet.start();
  limited.exit(Fixture::worker(0), {false, 127});
  CHECK(limited.cause().find("died while starting: exit code 127; memory_max is 300MiB") != std::string::npos);
}

TEST_CASE("fleet: memory is summed by device and kind, and goes with its worker", "[supervisor]") {
  Fixture fixture({1, 1});
  fixture.fleet.start();
  fixture.bringUp();
  const auto beat = [&](uint32_t group, const std::string& device, const std::string& kind, uint64_t bytes) {
    wire::WorkerEvent event = fixture.eventOf(Fixture::worker(group));
    wire::DeviceMemory& memory = *event.mutable_heartbeat()->add_device_memory();
    memory.set_device(device);
    memory.set_kind(kind);
    memory.set_bytes(bytes);
    fixture.fleet.onEvent(fixture.connectionOf(Fixture::worker(group)), event);
  };
  const auto held = [&](const std::string& device, const std::string& kind) {
    return fixture.metrics.device_memory.with(device, kind).Value();
  };
  beat(0, "cpu", "resident", 100);
  beat(1, "cpu", "resident", 20);
  CHECK(held("cpu", "resident") == 120);
  beat(1, "cuda:0", "reserved", 7);
  CHECK(held("cpu", "resident") == 100);
  CHECK(held("cuda:0", "reserved") == 7);
  v1::Topology topology;
  fixture.fleet.fill(
      topology, [](GroupIndex) { return false; }, noPlace);
  CHECK(topology.groups(0).workers(0).device_memory_bytes() == 0);
  CHECK(topology.groups(1).workers(0).device_memory_bytes() == 7);
  fixture.exit(Fixture::worker(1), {true, SIGKILL});
  CHECK(held("cuda:0", "reserved") == 0);
}

TEST_CASE("fleet: a group comes back with a new epoch after its back-off, and is served", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.bringUp();
  fixture.exit(Fixture::worker(1, 1), {true, SIGSEGV});
  fixture.clock.advance(milliseconds(99));
  fixture.reapKilled();
  fixture.fleet.onTimer();
  CHECK(fixture.launcher.launches == 3);
  fixture.clock.advance(milliseconds(1));
  CHECK(fixture.fleet.nextDeadline() <= fixture.clock.now());
  fixture.fleet.onTimer();
  CHECK(fixture.launcher.launches == 5);
  CHECK(fixture.launcher.running.at(Fixture::worker(1, 0)) == Epoch(2));
  fixture.answerChannels();  // the survivor retires the former channel
  fixture.bringUp();
  CHECK(fixture.host.ready == 2);
  CHECK(fixture.host.failures.empty());
  v1::Topology topology;
  fixture.fleet.fill(
      topology, [](GroupIndex) { return false; }, noPlace);
  CHECK(topology.groups(1).restarts() == 1);
  CHECK(topology.groups(1).epoch() == 2);
  CHECK(topology.groups(1).last_failure().code() == static_cast<int>(absl::StatusCode::kUnavailable));
}

TEST_CASE("fleet: restarts back off, and end after too many failed starts in a row", "[supervisor]") {
  Fixture fixture({1});
  fixture.fleet.start();
  fixture.bringUp();
  fixture.exit(Fixture::worker(0), {false, 1});
  std::vector<int64_t> delays;
  while (fixture.host.failures.empty()) {
    REQUIRE(delays.size() < 10);
    const auto before = fixture.clock.now();
    fixture.clock.advanceTo(fixture.fleet.nextDeadline());
    delays.push_back(std::chrono::duration_cast<milliseconds>(fixture.clock.now() - before).count());
    fixture.fleet.onTimer();
    fixture.exit(Fixture::worker(0), {false, 1});
  }
  CHECK(delays == std::vector<int64_t>{100, 200, 400});
  CHECK(messageOf(fixture.host.failures[0]).find("exit code 1") != std::string::npos);
}

TEST_CASE("fleet: only the process that was started may register, once, for its epoch", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  const auto attempt = [&](const std::string& group, uint32_t rank, int pid, uint64_t epoch) {
    wire::WorkerEvent event;
    event.set_epoch(epoch);
    event.mutable_register_()->set_group(group);
    event.mutable_register_()->set_rank(rank);
    event.mutable_register_()->set_pid(pid);
    fixture.link.closed.clear();
    fixture.fleet.onEvent(ConnectionId(1000 + fixture.next_connection++), event);
    return fixture.link.closed.empty() ? absl::OkStatus() : fixture.link.closed[0].second;
  };
  const int pid = fixture.launcher.pid(Fixture::worker(0));
  CHECK(attempt("unknown", 0, pid, 1).code() == absl::StatusCode::kNotFound);
  CHECK(attempt("g0", 1, pid, 1).code() == absl::StatusCode::kNotFound);
  CHECK(attempt("g0", 0, pid + 1, 1).code() == absl::StatusCode::kAlreadyExists);
  CHECK(attempt("g0", 0, pid, 2).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(attempt("g0", 0, pid, 1).ok());
  CHECK(attempt("g0", 0, pid, 1).code() == absl::StatusCode::kAlreadyExists);
  fixture.link.closed.clear();
  wire::WorkerEvent early;
  early.set_epoch(1);
  early.mutable_heartbeat();
  fixture.fleet.onEvent(ConnectionId(5000), early);
  CHECK(fixture.link.closed.size() == 1);
}

TEST_CASE("fleet: events of a former epoch are dropped", "[supervisor]") {
  Fixture fixture({1});
  fixture.fleet.start();
  fixture.bringUp();
  wire::WorkerEvent done = fixture.eventOf(Fixture::worker(0));
  done.mutable_done();
  const ConnectionId former = fixture.connectionOf(Fixture::worker(0));
  fixture.fleet.onEvent(former, done);
  CHECK(fixture.host.reports == 1);
  fixture.exit(Fixture::worker(0), {false, 1});
  fixture.clock.advance(milliseconds(100));
  fixture.fleet.onTimer();
  fixture.fleet.onEvent(former, done);
  CHECK(fixture.host.reports == 1);
  fixture.fleet.onClosed(former);
}

TEST_CASE("fleet: a stage that does not fit the topology is refused at start, by name", "[supervisor]") {
  Fixture fixture({1});
  fixture.fleet.start();
  fixture.registerWorker(Fixture::worker(0));
  fixture.ready(Fixture::worker(0), "other");
  CHECK(fixture.cause().find("no method \"run\"; it has: other") != std::string::npos);
  fixture.reapKilled();
  REQUIRE(fixture.host.failures.size() == 1);
  CHECK(fixture.host.failures[0].code() == absl::StatusCode::kInvalidArgument);

  Fixture untaken({1});
  untaken.fleet.start();
  untaken.registerWorker(Fixture::worker(0));
  wire::WorkerEvent returns = untaken.eventOf(Fixture::worker(0));
  wire::Method& lonely = *returns.mutable_ready()->add_methods();
  lonely.set_name("run");
  lonely.add_outputs("latents");
  untaken.fleet.onEvent(untaken.connectionOf(Fixture::worker(0)), returns);
  for (const char* part : {"g0 rank 0 (fake)", "method run returns \"latents\"", "{from: g0.run, to: GROUP.METHOD}"})
    CHECK(untaken.cause().find(part) != std::string::npos);

  Fixture unfed;
  unfed.fleet.start();
  unfed.registerWorker(Fixture::worker(0));
  wire::WorkerEvent event = unfed.eventOf(Fixture::worker(0));
  wire::Method& method = *event.mutable_ready()->add_methods();
  method.set_name("run");
  method.add_outputs("y");  // g1 needs x
  unfed.fleet.onEvent(unfed.connectionOf(Fixture::worker(0)), event);
  unfed.handled[Fixture::worker(0)] = Epoch(1);
  unfed.bringUp();
  REQUIRE(unfed.host.failures.size() == 1);
  CHECK(messageOf(unfed.host.failures[0]) == "g1 needs \"x\": its edges bring only: y");
}

TEST_CASE("fleet: a worker that does not read its commands is killed", "[supervisor]") {
  Fixture fixture({1});
  fixture.fleet.start();
  fixture.bringUp();
  fixture.link.full = true;
  fixture.fleet.send(Fixture::worker(0), {});
  CHECK(fixture.launcher.killed == std::vector<WorkerId>{Fixture::worker(0)});
}

TEST_CASE("fleet: the end retires channels, then consumers end before producers", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.bringUp();
  int done = 0;
  fixture.fleet.shutDown(milliseconds(3000), [&] { ++done; });
  REQUIRE(fixture.link.sent.size() == 3);
  for (const auto& [connection, command] : fixture.link.sent)
    CHECK(command.has_retire_edge());
  fixture.answerChannels();
  const auto told = [&](WorkerId worker) {
    return std::any_of(fixture.link.sent.begin(), fixture.link.sent.end(), [&](const auto& entry) {
      return entry.first == fixture.connectionOf(worker) && entry.second.has_shutdown();
    });
  };
  // answerChannels() emptied the list while it worked; the shutdown of the consumers came in the middle of that.
  CHECK(!told(Fixture::worker(0)));
  fixture.exit(Fixture::worker(1, 0), {false, 0});
  CHECK(!told(Fixture::worker(0)));
  fixture.exit(Fixture::worker(1, 1), {false, 0});
  CHECK(told(Fixture::worker(0)));
  CHECK(done == 0);
  fixture.exit(Fixture::worker(0), {false, 0});
  CHECK(done == 1);
  CHECK(fixture.host.lost.empty());
  CHECK(fixture.fleet.nextDeadline() == Clock::TimePoint::max());
}

TEST_CASE("fleet: who does not end within its share of the grace is killed", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.bringUp();
  int done = 0;
  const auto start = fixture.clock.now();
  fixture.fleet.shutDown(milliseconds(3000), [&] { ++done; });
  for (int turn = 0; turn < 20 && done == 0; ++turn) {
    fixture.clock.advanceTo(std::min(fixture.fleet.nextDeadline(), fixture.clock.now() + milliseconds(1000)));
    fixture.fleet.onTimer();
    fixture.reapKilled();
  }
  CHECK(done == 1);
  CHECK(fixture.clock.now() - start <= milliseconds(3000));
}

TEST_CASE("fleet: an end in the middle of a start ends too", "[supervisor]") {
  Fixture fixture;
  fixture.fleet.start();
  fixture.registerWorker(Fixture::worker(0));
  int done = 0;
  fixture.fleet.shutDown(milliseconds(3000), [&] { ++done; });
  for (int turn = 0; turn < 5; ++turn)
    fixture.reapKilled();
  CHECK(done == 1);
  CHECK(fixture.host.failures.empty());
}

}  // namespace
}  // namespace latentd::supervisor
