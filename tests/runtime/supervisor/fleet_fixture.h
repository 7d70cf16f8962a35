#pragma once

#include <chrono>
#include <csignal>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/metrics/registry.h"
#include "runtime/supervisor/fleet.h"
#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temp_dir.h"

// A fleet of processes that exist only as numbers: the test plays every worker.
namespace latentd::supervisor {

struct RecordingFleetHost final : FleetHost {
  void onEdgeOpen(EdgeIndex, ChannelId) override { ++edges_open; }
  void onGroupReady(GroupIndex) override {}
  void onFleetReady() override { ++ready; }
  void onGroupLost(GroupIndex group, const Status& cause) override { lost.emplace_back(group.value, cause); }
  void onGroupHeld(GroupIndex group, bool is_held) override { held.emplace_back(group.value, is_held); }
  void onFleetFailed(const Status& cause) override { failures.push_back(cause); }
  std::string workOf(GroupIndex) const override { return work; }
  void onWorkReport(WorkerId, const internal::v1::WorkerEvent& event) override {
    ++reports;
    last_report = event;
  }
  std::string work;
  int edges_open = 0;
  int ready = 0;
  int reports = 0;
  internal::v1::WorkerEvent last_report;
  std::vector<std::pair<uint32_t, Status>> lost;
  std::vector<std::pair<uint32_t, bool>> held;
  std::vector<Status> failures;
};

struct RecordingLink final : ControlLink {
  bool send(ConnectionId connection, internal::v1::WorkerCommand command) override {
    sent.emplace_back(connection, std::move(command));
    return !full;
  }
  void close(ConnectionId connection, const Status& status) override { closed.emplace_back(connection, status); }
  std::vector<std::pair<ConnectionId, internal::v1::WorkerCommand>> sent;
  std::vector<std::pair<ConnectionId, Status>> closed;
  bool full = false;
};

using Place = std::vector<std::pair<std::string, uint32_t>>;
inline Place noPlace(const config::GroupSpec&, Rank) { return {}; }

// Plays every worker; what a worker does on its own is a call of the test.
struct FleetFixture {
  explicit FleetFixture(const std::vector<uint32_t>& ranks = {1, 2}, const std::vector<uint32_t>& replicas = {})
      : topology(chainTopology(ranks, replicas)) {
    fleet.connect(link, launcher);
  }
  static WorkerId worker(uint32_t group, uint32_t rank = 0) { return {GroupIndex(group), Rank(rank)}; }
  ConnectionId connectionOf(WorkerId worker) { return connections.at(worker); }

  internal::v1::WorkerEvent eventOf(WorkerId worker) {
    internal::v1::WorkerEvent event;
    event.set_epoch(launcher.running.at(worker).value);
    return event;
  }
  void registerWorker(WorkerId worker) {
    internal::v1::WorkerEvent event = eventOf(worker);
    event.mutable_register_()->set_group(topology.groups[worker.group.value].name);
    event.mutable_register_()->set_rank(worker.rank.value);
    event.mutable_register_()->set_pid(launcher.pid(worker));
    connections[worker] = ConnectionId(next_connection++);
    fleet.onEvent(connections[worker], event);
  }
  void phase(WorkerId worker, const std::string& name) {
    internal::v1::WorkerEvent event = eventOf(worker);
    event.mutable_phase()->set_phase(name);
    event.mutable_phase()->set_fraction(0.5);
    fleet.onEvent(connectionOf(worker), event);
  }
  void ready(WorkerId worker, const std::string& method = "run", const std::string& ulysses_obstacle = "") {
    internal::v1::WorkerEvent event = eventOf(worker);
    event.mutable_ready()->set_ulysses_obstacle(ulysses_obstacle);
    internal::v1::Method& offered = *event.mutable_ready()->add_methods();
    offered.set_name(method);
    const bool sink = topology.emitsFrames(worker.group.value);
    offered.set_emits_frames(sink);
    if (!sink) offered.add_outputs("x");
    if (topology.groups[worker.group.value].place != 0) offered.add_inputs("x");
    fleet.onEvent(connectionOf(worker), event);
  }
  void exit(WorkerId worker, ExitStatus status, std::vector<std::string> lines = {}) {
    launcher.running.erase(worker);
    fleet.onWorkerExit(worker, status, lines);
  }
  void reapKilled() {
    for (const WorkerId worker : std::exchange(launcher.killed, {})) {
      if (launcher.running.count(worker) != 0) exit(worker, {true, SIGKILL});
    }
  }
  // Registers and loads whoever runs and has not, and answers for the channels.
  void bringUp() {
    for (uint32_t group = 0; group < topology.groups.size(); ++group) {
      for (uint32_t rank = 0; rank < topology.groups[group].ranks(); ++rank) {
        if (launcher.running.count(worker(group, rank)) == 0) continue;
        if (handled[worker(group, rank)] == launcher.running[worker(group, rank)]) continue;
        handled[worker(group, rank)] = launcher.running[worker(group, rank)];
        registerWorker(worker(group, rank));
        ready(worker(group, rank));
      }
    }
    answerChannels();
  }
  void answerChannels() {
    for (size_t index = 0; index < link.sent.size(); ++index) {
      const auto [connection, command] = link.sent[index];
      for (const auto& [id, owner] : connections) {
        if (owner != connection || launcher.running.count(id) == 0) continue;
        internal::v1::WorkerEvent event = eventOf(id);
        if (command.has_open_producer()) {
          event.mutable_edge_ready()->set_channel_id(command.open_producer().channel().channel_id());
        } else if (command.has_open_consumer()) {
          event.mutable_edge_ready()->set_channel_id(command.open_consumer().channel().channel_id());
        } else if (command.has_retire_edge()) {
          event.mutable_edge_retired()->set_channel_id(command.retire_edge().channel_id());
        } else {
          continue;
        }
        fleet.onEvent(connection, event);
      }
    }
    link.sent.clear();
  }
  std::string cause() { return host.lost.empty() ? "" : messageOf(host.lost.back().second); }

  testing::ManualClock clock;
  config::Topology topology;
  metrics::Registry registry;
  metrics::WorkerMetrics metrics{registry};
  RecordingFleetHost host;
  RecordingLink link;
  FakeLauncher launcher;
  std::map<WorkerId, ConnectionId> connections;
  std::map<WorkerId, Epoch> handled;
  uint64_t next_connection = 1;
  testing::TempDir folder;
  Fleet fleet{topology, clock, metrics, host, folder.path()};
};

}  // namespace latentd::supervisor
