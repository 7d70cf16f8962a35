#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/api.pb.h"
#include "proto/worker.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/channel_plan.h"
#include "runtime/supervisor/command_sink.h"
#include "runtime/supervisor/control_link.h"
#include "runtime/supervisor/group.h"
#include "runtime/supervisor/health_monitor.h"
#include "runtime/supervisor/worker_launcher.h"

namespace latentd::supervisor {

// Told by the fleet. Called on the supervisor's loop.
class FleetHost {
 public:
  virtual ~FleetHost() = default;
  virtual void onEdgeOpen(EdgeIndex edge, ChannelId channel) = 0;
  virtual void onGroupReady(GroupIndex group) = 0;
  // Every group is loaded and every edge open; again after each recovery.
  virtual void onFleetReady() = 0;
  virtual void onGroupLost(GroupIndex group, const Status& cause) = 0;
  // True: it is about to be lost, unless the daemon ends: it is to begin nothing. False: it goes on.
  virtual void onGroupHeld(GroupIndex group, bool held) = 0;
  // A group will not come back: the daemon cannot serve. The first cause.
  virtual void onFleetFailed(const Status& cause) = 0;
  // "running job 12ab, step 3 of 16": what the group does at present; empty: nothing.
  virtual std::string workOf(GroupIndex group) const = 0;
  // What a worker reports of its commands and channels, from the group's present epoch.
  virtual void onWorkReport(WorkerId worker, const internal::v1::WorkerEvent& event) = 0;
};

// All workers: groups, their channels, their health, and which stream belongs to whom.
// Owner: Supervisor. Thread: the supervisor's loop.
// States: new -> running -> shutting down -> ended (no process is left).
// Failure: of a worker, its group's; of a group that cannot start, the daemon's.
class Fleet final : public CommandSink,
                    public ControlHandler,
                    public ExitObserver,
                    public GroupObserver,
                    public ChannelObserver {
 public:
  Fleet(const config::Topology& topology, const Clock& clock, metrics::WorkerMetrics& metrics, FleetHost& host,
        std::string runtime_dir);
  // Before start(): the three need each other.
  void connect(ControlLink& link, WorkerLauncher& launcher);

  // Starts every group.
  void start();
  // The group is to be replaced: a worker asked for it, or does not obey.
  void recycle(GroupIndex group, const Status& cause);
  // The same once it is known that nothing else of the group was the cause: a rank met something of another.
  void suspect(GroupIndex group, const Status& met);
  // The daemon was sent a signal to end: those that its workers get are of the same sender.
  void disregardSignals();
  bool allReady() const;
  // What is not ready, for /readyz and for the one who waits. The first time every group must be; later one of each
  // stage's replicas is enough.
  Status readiness() const;
  std::vector<v1::ModelLimits> stageLimits() const;  // in pipeline order; once all are ready

  // Retires all channels, then ends the groups stage by stage, consumers before producers, each within its share of
  // grace; `done` is called once when no process is left.
  void shutDown(std::chrono::milliseconds grace, std::function<void()> done);
  void killAll();

  // Where a rank is in its group's mesh, by dimension: what a mesh is, is not known here.
  using PlaceOf = std::function<std::vector<std::pair<std::string, uint32_t>>(const config::GroupSpec&, Rank)>;
  void fill(v1::Topology& topology, const std::function<bool(GroupIndex)>& is_busy, const PlaceOf& place_of) const;
  // NOT_FOUND for a name that is none, FAILED_PRECONDITION for a group of one rank; empty: every group of several.
  StatusOr<v1::FlightRecords> flightRecords(const std::string& group) const;
  std::optional<EdgeIndex> edgeOf(ChannelId channel) const { return plan_.edgeOf(channel); }

  Clock::TimePoint nextDeadline() const;
  void onTimer();

  // ---- CommandSink
  void send(WorkerId worker, internal::v1::WorkerCommand command) override;
  Status sendDescriptor(WorkerId worker, uint64_t id, int fd) override;
  // ---- ControlHandler
  void onEvents(ConnectionId connection, const internal::v1::WorkerEvents& batch) override;
  void onEvent(ConnectionId connection, const internal::v1::WorkerEvent& event);
  void onClosed(ConnectionId connection) override;
  // ---- ExitObserver
  void onWorkerExit(WorkerId worker, const ExitStatus& status, const std::vector<std::string>& last_lines) override;
  // ---- GroupObserver
  void onGroupLoaded(const Group& group) override;
  void onGroupFailed(const Group& group, const Status& cause) override;
  void onGroupHeld(const Group& group, bool held) override { host_.onGroupHeld(group.index(), held); }
  void onGroupGivenUp(const Group& group, const Status& cause) override;
  std::string workOf(const Group& group) const override { return host_.workOf(group.index()); }
  // ---- ChannelObserver
  void onChannelOpen(EdgeIndex edge, ChannelId channel) override;
  void onChannelFailed(WorkerId worker, const Status& cause) override;

 private:
  struct Connection {
    WorkerId worker;
    Epoch epoch;
  };
  // Where an orderly end stands.
  struct Shutdown {
    std::function<void()> done;
    std::chrono::milliseconds share{};  // of grace, for each step
    Clock::TimePoint step_deadline;
    size_t step = 0;  // 0: channels retire; then one stage a step
  };

  Group& groupOf(WorkerId worker) { return *groups_[worker.group.value]; }
  Status registerWorker(ConnectionId connection, const internal::v1::WorkerEvent& event);
  void route(WorkerId worker, const internal::v1::WorkerEvent& event);
  void onHeartbeat(WorkerId worker, const internal::v1::Heartbeat& heartbeat);
  // Sums of what the workers hold now.
  void setDeviceMemory();
  void announceReadiness();
  // Every group is loaded and heard of, and every edge open.
  Status completeness() const;
  Status groupReadiness(GroupIndex group) const;
  // It is loaded, and its edges to whoever else is are open.
  bool serves(GroupIndex group) const;
  void noteServing();
  void advanceShutdown();
  bool allStopped() const;

  const config::Topology& topology_;
  const Clock& clock_;
  metrics::WorkerMetrics& metrics_;
  FleetHost& host_;
  Logger log_;
  ControlLink* link_ = nullptr;
  WorkerLauncher* launcher_ = nullptr;
  HealthMonitor health_;
  const std::string runtime_dir_;
  ChannelPlan plan_;
  std::vector<std::unique_ptr<Group>> groups_;  // by group index
  std::unordered_map<ConnectionId, Connection> connections_;
  std::map<WorkerId, ConnectionId> connection_of_;
  std::map<std::pair<std::string, std::string>, uint64_t> device_memory_;  // by device and kind, as exposed
  std::optional<Shutdown> shutdown_;
  std::set<GroupIndex> serving_;
  bool failed_ = false;
  bool was_ready_ = false;
  Status start_failure_;  // the first one, until all have been ready
};

}  // namespace latentd::supervisor
