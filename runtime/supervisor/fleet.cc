#include "runtime/supervisor/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/supervisor/group_contract.h"
#include "runtime/supervisor/token_cuts.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

Fleet::Fleet(const config::Topology& topology, const Clock& clock, metrics::WorkerMetrics& metrics, FleetHost& host,
             std::string runtime_dir)
    : topology_(topology),
      clock_(clock),
      metrics_(metrics),
      host_(host),
      log_(getLogger("fleet")),
      health_(clock, topology.deadlines.heartbeat_miss),
      runtime_dir_(std::move(runtime_dir)),
      plan_(topology, clock, *this, *this, runtime_dir_) {}

void Fleet::connect(ControlLink& link, WorkerLauncher& launcher) {
  link_ = &link;
  launcher_ = &launcher;
  for (uint32_t index = 0; index < topology_.groups.size(); ++index) {
    groups_.push_back(std::make_unique<Group>(
        GroupIndex(index), Group::Deps{topology_, clock_, launcher, *this, health_, metrics_, *this, runtime_dir_}));
  }
}

void Fleet::start() {
  for (const auto& group : groups_) {
    // All or nothing: a start that cannot succeed is not continued.
    if (!failed_) group->start();
  }
}

void Fleet::recycle(GroupIndex group, const Status& cause) {
  groups_[group.value]->fail(std::nullopt, cause, "recycle");
}

void Fleet::suspect(GroupIndex group, const Status& met) {
  groups_[group.value]->suspect(std::nullopt, met, "recycle");
}

void Fleet::disregardSignals() {
  for (const auto& group : groups_)
    group->disregardSignals();
}

// ---- commands -------------------------------------------------------------------------------------------------

void Fleet::send(WorkerId worker, wire::WorkerCommand command) {
  const auto connection = connection_of_.find(worker);
  if (connection == connection_of_.end()) return;  // its stream broke: its exit or its silence is told soon
  if (link_->send(connection->second, std::move(command))) return;
  // Not failed from inside: whoever sends is in the middle of its own change.
  log_->warn("{} rank {} does not read its commands", topology_.groups[worker.group.value].name, worker.rank.value);
  launcher_->kill(worker);
}

Status Fleet::sendDescriptor(WorkerId worker, uint64_t id, int fd) { return launcher_->sendDescriptor(worker, id, fd); }

// ---- streams --------------------------------------------------------------------------------------------------

Status Fleet::registerWorker(ConnectionId connection, const wire::WorkerEvent& event) {
  if (!event.has_register_()) return absl::FailedPreconditionError("the first event must be Register");
  const wire::Register& registration = event.register_();
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const std::unique_ptr<Group>& group) {
    return group->spec().name == registration.group();
  });
  if (found == groups_.end() || registration.rank() >= (*found)->spec().ranks()) {
    return absl::NotFoundError(
        fmt::format("there is no group \"{}\" with a rank {}", registration.group(), registration.rank()));
  }
  Group& group = **found;
  const WorkerId worker{group.index(), Rank(registration.rank())};
  if (Epoch(event.epoch()) != group.epoch()) {
    return absl::FailedPreconditionError(
        fmt::format("epoch {} of {} is over: {} is", event.epoch(), registration.group(), group.epoch().value));
  }
  if (registration.pid() != launcher_->pid(worker) || group.workers().at(worker.rank).phase != WorkerPhase::kStarting) {
    return absl::AlreadyExistsError(
        fmt::format("process {} is not the one that was started as {} rank {}, or has "
                    "registered already",
                    registration.pid(), registration.group(), registration.rank()));
  }
  connections_[connection] = {worker, group.epoch()};
  connection_of_[worker] = connection;
  group.onRegistered(worker.rank);
  return absl::OkStatus();
}

void Fleet::onEvents(ConnectionId connection, const wire::WorkerEvents& batch) {
  for (const wire::WorkerEvent& event : batch.events())
    onEvent(connection, event);
}

void Fleet::onEvent(ConnectionId connection, const wire::WorkerEvent& event) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) {
    if (const Status registered = registerWorker(connection, event); !registered.ok()) {
      log_->warn("a stream on the control socket was refused: {}", messageOf(registered));
      link_->close(connection, registered);
    }
    return;
  }
  const Connection& known = found->second;
  if (known.epoch != groupOf(known.worker).epoch() || Epoch(event.epoch()) != known.epoch) return;
  const WorkerId worker = known.worker;
  route(worker, event);
}

void Fleet::route(WorkerId worker, const wire::WorkerEvent& event) {
  Group& group = groupOf(worker);
  switch (event.event_case()) {
    case wire::WorkerEvent::kPhase:
      return group.onPhase(worker.rank, event.phase());
    case wire::WorkerEvent::kReady:
      return group.onReady(worker.rank, event.ready());
    case wire::WorkerEvent::kEdgeReady:
      return plan_.onEdgeReady(worker, event.edge_ready());
    case wire::WorkerEvent::kEdgeRetired:
      plan_.onEdgeRetired(worker, event.edge_retired());
      return advanceShutdown();
    case wire::WorkerEvent::kHeartbeat:
      onHeartbeat(worker, event.heartbeat());
      return host_.onWorkReport(worker, event);
    case wire::WorkerEvent::kSignalled:
      return group.onSignalled(worker.rank, event.signalled().signal_number());
    case wire::WorkerEvent::kFatal:
      return group.onFatal(worker.rank, event.fatal());
    case wire::WorkerEvent::kFailed: {
      wire::WorkerEvent explained = event;
      group.explain(*explained.mutable_failed());
      return host_.onWorkReport(worker, explained);
    }
    case wire::WorkerEvent::kRegister:
    case wire::WorkerEvent::EVENT_NOT_SET:
      return;
    default:
      return host_.onWorkReport(worker, event);
  }
}

void Fleet::onHeartbeat(WorkerId worker, const wire::Heartbeat& heartbeat) {
  WorkerRecord& record = groupOf(worker).workers().at(worker.rank);
  if (record.phase == WorkerPhase::kAbsent || record.phase == WorkerPhase::kKilled) return;
  record.resident_bytes = heartbeat.resident_bytes();
  record.device_memory = heartbeat.device_memory();
  // A worker that was told to end may be silent while it unmaps: its grace bounds it.
  if (record.phase != WorkerPhase::kStopping) health_.heartbeat(worker);
  const config::GroupSpec& spec = groupOf(worker).spec();
  metrics_.resident_memory.with(spec.name, std::to_string(worker.rank.value))
      .Set(static_cast<double>(heartbeat.resident_bytes()));
  groupOf(worker).onHeartbeat(worker.rank);
  setDeviceMemory();
}

void Fleet::setDeviceMemory() {
  for (auto& [key, bytes] : device_memory_)
    bytes = 0;
  for (const auto& group : groups_) {
    for (uint32_t rank = 0; rank < group->spec().ranks(); ++rank) {
      for (const wire::DeviceMemory& memory : group->workers().at(Rank(rank)).device_memory)
        device_memory_[{memory.device(), memory.kind()}] += memory.bytes();
    }
  }
  for (const auto& [key, bytes] : device_memory_)
    metrics_.device_memory.with(key.first, key.second).Set(static_cast<double>(bytes));
}

void Fleet::onClosed(ConnectionId connection) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  // The exit of its process says why; a process that lives on without its stream is silent, which health tells.
  const auto current = connection_of_.find(found->second.worker);
  if (current != connection_of_.end() && current->second == connection) connection_of_.erase(current);
  connections_.erase(found);
}

void Fleet::onWorkerExit(WorkerId worker, const ExitStatus& status, const std::vector<std::string>& last_lines) {
  connection_of_.erase(worker);
  groupOf(worker).onExit(worker.rank, status, last_lines);
  setDeviceMemory();
  advanceShutdown();
}

// ---- groups and channels --------------------------------------------------------------------------------------

void Fleet::onGroupLoaded(const Group& group) {
  plan_.groupLoaded(group.index(), group.epoch());
  host_.onGroupReady(group.index());
  announceReadiness();
}

void Fleet::onGroupFailed(const Group& group, const Status& cause) {
  // Whoever is reaped first need not have failed first.
  if (!was_ready_ && start_failure_.ok()) start_failure_ = cause;
  plan_.groupLost(group.index());
  serving_.erase(group.index());
  host_.onGroupLost(group.index(), cause);
}

void Fleet::onGroupGivenUp(const Group& group, const Status& cause) {
  if (std::exchange(failed_, true) || shutdown_) return;
  log_->error("{} cannot be started: the daemon ends", group.spec().name);
  // All or nothing: the others have no use without it.
  killAll();
  host_.onFleetFailed(start_failure_.ok() ? cause : start_failure_);
}

void Fleet::onChannelOpen(EdgeIndex edge, ChannelId channel) {
  const config::EdgeSpec& spec = topology_.edges[edge.value];
  log_->info("edge {} is open: channel {}, {}, {}", spec.name, channel.value, config::toString(spec.transport),
             spec.transport_reason);
  host_.onEdgeOpen(edge, channel);
  announceReadiness();
}

void Fleet::onChannelFailed(WorkerId worker, const Status& cause) {
  groupOf(worker).fail(worker.rank, cause,
                       cause.code() == absl::StatusCode::kDeadlineExceeded ? "deadline" : "channel");
}

void Fleet::announceReadiness() {
  if (failed_) return;
  if (was_ready_) noteServing();
  if (!completeness().ok()) return;
  std::vector<const Methods*> methods;
  for (const config::StageSpec& stage : topology_.stages)
    methods.push_back(&groups_[stage.groups.front()]->workers().at(Rank(0)).ready.methods());
  // Only when all stages are loaded are both sides of every edge known.
  const auto missing = findMissingInput(topology_, methods);
  if (const Status fits = missing ? missing->status : checkTokenCuts(topology_, methods); !fits.ok()) {
    failed_ = true;
    killAll();
    host_.onFleetFailed(fits);
    return;
  }
  start_failure_ = absl::OkStatus();
  if (!std::exchange(was_ready_, true)) noteServing();
  host_.onFleetReady();
}

void Fleet::noteServing() {
  for (const auto& group : groups_) {
    const GroupIndex index = group->index();
    if (serving_.count(index) != 0 || !serves(index)) continue;
    serving_.insert(index);
    group->served();
  }
}

// ---- the end --------------------------------------------------------------------------------------------------

void Fleet::shutDown(std::chrono::milliseconds grace, std::function<void()> done) {
  LATENTD_CHECK(!shutdown_, "one orderly end");
  // Equal shares: no step is known to take longer than another.
  shutdown_ = Shutdown{std::move(done), grace / static_cast<int64_t>(topology_.stages.size() + 1), {}, 0};
  shutdown_->step_deadline = clock_.now() + shutdown_->share;
  plan_.retireAll();
  advanceShutdown();
}

// Step 0 waits for the channels; step k for the stage k-th from the end of the pipeline: consumers go first.
void Fleet::advanceShutdown() {
  const auto groupsOf = [this](size_t step) { return topology_.stages[topology_.stages.size() - step].groups; };
  while (shutdown_) {
    const bool overdue = shutdown_->step_deadline <= clock_.now();
    if (shutdown_->step == 0) {
      if (plan_.retiring() && !overdue) return;
    } else {
      const std::vector<size_t> groups = groupsOf(shutdown_->step);
      const bool stopped = std::all_of(groups.begin(), groups.end(), [this](size_t group) {
        return groups_[group]->state() == Group::State::kStopped;
      });
      if (!stopped && !overdue) return;
      for (const size_t group : groups)
        groups_[group]->killAll();
    }
    if (shutdown_->step == topology_.stages.size()) {
      // Nothing is left to be tried: what was killed is awaited.
      if (overdue) shutdown_->step_deadline = Clock::TimePoint::max();
      break;
    }
    ++shutdown_->step;
    shutdown_->step_deadline = clock_.now() + shutdown_->share;
    for (const size_t group : groupsOf(shutdown_->step))
      groups_[group]->shutDown(shutdown_->share);
  }
  if (!shutdown_ || !allStopped()) return;
  const std::function<void()> done = std::move(shutdown_->done);
  shutdown_.reset();
  done();
}

bool Fleet::allStopped() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const std::unique_ptr<Group>& group) { return group->state() == Group::State::kStopped; });
}

void Fleet::killAll() {
  for (const auto& group : groups_)
    group->killAll();
}

// ---- time -----------------------------------------------------------------------------------------------------

Clock::TimePoint Fleet::nextDeadline() const {
  Clock::TimePoint next = std::min(health_.nextDeadline(), plan_.nextDeadline());
  if (shutdown_) return std::min(next, shutdown_->step_deadline);
  for (const auto& group : groups_)
    next = std::min(next, group->nextDeadline());
  return next;
}

void Fleet::onTimer() {
  for (const HealthMonitor::Overdue& overdue : health_.takeOverdue()) {
    groupOf(overdue.worker).fail(overdue.worker.rank, overdue.cause, overdue.reason);
  }
  plan_.onTimer();
  if (shutdown_) {
    if (shutdown_->step_deadline <= clock_.now()) advanceShutdown();
    return;  // what fails now is not started again
  }
  for (const auto& group : groups_)
    group->onTimer();
}

}  // namespace latentd::supervisor
