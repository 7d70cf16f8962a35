#include "runtime/supervisor/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/supervisor/group_contract.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

namespace {

// Of a GPU; what a worker holds of the CPU is its resident memory.
uint64_t deviceBytes(const WorkerRecord& record) {
  uint64_t bytes = 0;
  for (const wire::DeviceMemory& memory : record.device_memory) {
    const bool counted = memory.kind() == "reserved" || memory.kind() == "pools";
    if (memory.device() != "cpu" && counted) bytes += memory.bytes();
  }
  return bytes;
}

}  // namespace

Fleet::Fleet(const config::Topology& topology, const Clock& clock, metrics::WorkerMetrics& metrics, FleetHost& host,
             std::string socket_dir)
    : topology_(topology),
      clock_(clock),
      metrics_(metrics),
      host_(host),
      log_(getLogger("fleet")),
      health_(clock, topology.deadlines.heartbeat_miss),
      plan_(topology, clock, *this, *this, std::move(socket_dir)) {}

void Fleet::connect(ControlLink& link, WorkerLauncher& launcher) {
  link_ = &link;
  launcher_ = &launcher;
  for (uint32_t index = 0; index < topology_.groups.size(); ++index) {
    groups_.push_back(std::make_unique<Group>(
        GroupIndex(index), Group::Deps{topology_, clock_, launcher, *this, health_, metrics_, *this}));
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
    case wire::WorkerEvent::kFatal:
      return group.fail(
          worker.rank,
          makeStatus(static_cast<absl::StatusCode>(event.fatal().status().code()), event.fatal().status().message()),
          "load");
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
  if (!allReady() || failed_) return;
  std::vector<const Methods*> methods;
  for (const auto& group : groups_)
    methods.push_back(&group->workers().at(Rank(0)).ready.methods());
  // Only when all stages are loaded are both sides of every edge known.
  if (const auto missing = findMissingInput(topology_, methods)) {
    failed_ = true;
    killAll();
    host_.onFleetFailed(missing->status);
    return;
  }
  was_ready_ = true;
  start_failure_ = absl::OkStatus();
  for (const auto& group : groups_)
    group->served();
  host_.onFleetReady();
}

bool Fleet::allReady() const { return readiness().ok(); }

Status Fleet::readiness() const {
  for (const auto& group : groups_) {
    if (group->state() == Group::State::kLoaded) continue;
    std::string detail;
    for (uint32_t rank = 0; rank < group->spec().ranks(); ++rank) {
      const WorkerRecord& worker = group->workers().at(Rank(rank));
      detail += fmt::format("; rank {} {}", rank, toString(worker.phase));
      if (worker.progress.fraction() > 0) detail += fmt::format(" {:.0f} %", worker.progress.fraction() * 100);
    }
    if (!group->lastFailure().ok()) detail += "; last failure: " + messageOf(group->lastFailure());
    return absl::UnavailableError(fmt::format("{} is not ready{}", group->spec().name, detail));
  }
  for (uint32_t edge = 0; edge < topology_.edges.size(); ++edge) {
    if (!plan_.isOpen(EdgeIndex(edge))) {
      return absl::UnavailableError(fmt::format("edge {} is not open", topology_.edges[edge].name));
    }
  }
  for (const auto& [worker, connection] : connection_of_) {
    if (health_.fresh(worker)) continue;
    return absl::UnavailableError(
        fmt::format("{} rank {} is silent", topology_.groups[worker.group.value].name, worker.rank.value));
  }
  return absl::OkStatus();
}

std::vector<v1::ModelLimits> Fleet::stageLimits() const {
  std::vector<v1::ModelLimits> limits;
  for (const size_t index : topology_.order)
    limits.push_back(groups_[index]->limits());
  return limits;
}

// ---- the end --------------------------------------------------------------------------------------------------

void Fleet::shutDown(std::chrono::milliseconds grace, std::function<void()> done) {
  LATENTD_CHECK(!shutdown_, "one orderly end");
  // Equal shares: no step is known to take longer than another.
  shutdown_ = Shutdown{std::move(done), grace / static_cast<int64_t>(groups_.size() + 1), {}, 0};
  shutdown_->step_deadline = clock_.now() + shutdown_->share;
  plan_.retireAll();
  advanceShutdown();
}

// Step 0 waits for the channels; step k for the group k-th from the end of the pipeline: consumers go first.
void Fleet::advanceShutdown() {
  while (shutdown_) {
    const bool overdue = shutdown_->step_deadline <= clock_.now();
    if (shutdown_->step == 0) {
      if (plan_.retiring() && !overdue) return;
    } else {
      Group& group = *groups_[topology_.order[groups_.size() - shutdown_->step]];
      if (group.state() != Group::State::kStopped && !overdue) return;
      group.killAll();
    }
    if (shutdown_->step == groups_.size()) {
      // Nothing is left to be tried: what was killed is awaited.
      if (overdue) shutdown_->step_deadline = Clock::TimePoint::max();
      break;
    }
    ++shutdown_->step;
    shutdown_->step_deadline = clock_.now() + shutdown_->share;
    groups_[topology_.order[groups_.size() - shutdown_->step]]->shutDown(shutdown_->share);
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

// ---- views and time -------------------------------------------------------------------------------------------

void Fleet::fill(v1::Topology& topology, const std::function<bool(GroupIndex)>& is_busy) const {
  for (const auto& group : groups_) {
    v1::Group& proto = *topology.add_groups();
    proto.set_name(group->spec().name);
    proto.set_stage(group->spec().stage);
    proto.set_epoch(group->epoch().value);
    proto.set_threads(group->spec().threads);
    proto.set_restarts(group->restarts());
    if (!group->lastFailure().ok()) {
      proto.mutable_last_failure()->set_code(static_cast<int32_t>(group->lastFailure().code()));
      proto.mutable_last_failure()->set_message(messageOf(group->lastFailure()));
    }
    for (uint32_t rank = 0; rank < group->spec().ranks(); ++rank) {
      const WorkerRecord& record = group->workers().at(Rank(rank));
      v1::Worker& worker = *proto.add_workers();
      worker.set_rank(rank);
      worker.set_pid(launcher_->pid({group->index(), Rank(rank)}));
      worker.set_device(config::toString(group->spec().devices[rank]));
      worker.set_state(toProto(record.phase, is_busy(group->index())));
      worker.set_memory_bytes(record.resident_bytes);
      worker.set_device_memory_bytes(deviceBytes(record));
    }
  }
}

Clock::TimePoint Fleet::nextDeadline() const {
  Clock::TimePoint next = std::min(health_.nextDeadline(), plan_.nextDeadline());
  if (shutdown_) return std::min(next, shutdown_->step_deadline);
  for (const auto& group : groups_)
    next = std::min(next, group->nextStart());
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
