#include "runtime/worker/worker.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/worker/proto_convert.h"
#include "runtime/worker/stage_startup.h"
#include "runtime/worker/tensor_convert.h"

namespace latentd::worker {
namespace {

using internal::v1::WorkerCommand;
using internal::v1::WorkerEvent;

// The supervisor listens before it starts workers, so that only a machine under load makes this long.
constexpr std::chrono::seconds kConnectWait{10};
constexpr std::chrono::seconds kFatalGrace{5};
// For the supervisor to end the stream after ours: it may be busy, and nothing depends on it.
constexpr std::chrono::seconds kStreamEndWait{1};
constexpr std::chrono::milliseconds kHeartbeatDefault{1000};
// Every wait has a deadline; this one only makes the main thread look again.
constexpr std::chrono::minutes kLook{1};

}  // namespace

Worker::Worker(WorkerOptions options, const stages::StageRegistry& registry)
    : options_(std::move(options)),
      registry_(registry),
      events_(options_.epoch, [this] { leave(WorkerExit::kOverflow, "the supervisor takes no events"); }),
      service_(clock_, "service") {}

Worker::~Worker() = default;

void Worker::leave(WorkerExit exit, const std::string& why) {
  getLogger("worker")->error("ending at once: {}", why);
  ::_exit(static_cast<int>(exit));
}

WorkerExit Worker::run() {
  // Before there is a stream: nothing may go before it, and a signal is told at any time.
  WorkerEvent event;
  event.mutable_register_()->set_group(options_.group);
  event.mutable_register_()->set_rank(options_.rank.value);
  event.mutable_register_()->set_pid(::getpid());
  events_.post(std::move(event));
  if (const Status status = connect(); !status.ok()) {
    getLogger("worker")->error("{}", messageOf(status));
    return WorkerExit::kStartFailed;
  }
  const End end = waitForEnd();
  takeDown(end);
  return end.exit;
}

Status Worker::connect() {
  Lifeline::Handlers lifeline;
  lifeline.on_supervisor_lost = [this] { leave(WorkerExit::kSupervisorLost, "the supervisor's process ended"); };
  lifeline.on_signal = [this](int number) {
    WorkerEvent event;
    event.mutable_signalled()->set_signal_number(number);
    events_.post(std::move(event));
  };
  LATENTD_ASSIGN_OR_RETURN(UniqueFd socket, duplicateFd(options_.lifeline.get()));
  LATENTD_ASSIGN_OR_RETURN(lifeline_,
                           Lifeline::watch(std::move(socket), descriptors_, service_.loop(), std::move(lifeline)));
  ControlClient::Handlers control;
  control.on_command = [this](WorkerCommand command) { onCommand(std::move(command)); };
  control.on_end = [this](const Status& status) {
    {
      MutexLock lock(command_mutex_);
      if (ending_) return;
    }
    leave(WorkerExit::kSupervisorLost, "the control stream ended: " + status.ToString());
  };
  LATENTD_ASSIGN_OR_RETURN(control_, ControlClient::connect(options_.control_target, events_, std::move(control),
                                                            clock_.now() + kConnectWait));
  return absl::OkStatus();
}

// ---- commands -----------------------------------------------------------------------------------------------

void Worker::onCommand(WorkerCommand command) {
  MutexLock lock(command_mutex_);
  if (ending_) return;
  if (command.has_shutdown()) {
    requestEnd({WorkerExit::kDone, std::chrono::milliseconds(command.shutdown().grace_ms())});
  } else if (command.has_load()) {
    if (const Status status = load(command.load()); !status.ok()) fatal(status);
  } else if (executor_ == nullptr) {
    fatal(absl::FailedPreconditionError("the first command must be Load"));
  } else {
    dispatch(std::move(command));
  }
}

StatusOr<StepGate> Worker::makeGate(const internal::v1::Load& load) {
  if (load.world_size() <= 1) {
    LATENTD_ASSIGN_OR_RETURN(ShmRegion own, StepGate::createRegion());
    return StepGate::attach(std::move(own), Rank(0));
  }
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, descriptors_.take(load.step_gate_id()));
  return StepGate::attach(std::move(region), options_.rank);
}

Status Worker::load(const internal::v1::Load& load) {
  if (executor_ != nullptr) return absl::FailedPreconditionError("Load came twice");
  if (load.group() != options_.group || load.rank() != options_.rank.value) {
    return absl::InvalidArgumentError("Load is for " + load.group() + "/" + std::to_string(load.rank()) +
                                      ", this worker is " + options_.group + "/" + std::to_string(options_.rank.value));
  }
  LATENTD_ASSIGN_OR_RETURN(const channel::Device device, parseDevice(load.device()));
  const std::chrono::milliseconds device_timeout(load.device_timeout_ms());
  LATENTD_ASSIGN_OR_RETURN(device_, WorkerDevice::open(device, device_timeout));
  LATENTD_ASSIGN_OR_RETURN(StepGate gate, makeGate(load));
  edges_ = std::make_unique<Edges>(options_.rank, *device_, events_);
  StageExecutor::Environment environment;
  environment.channels = edges_.get();
  environment.events = &events_;
  environment.descriptors = &descriptors_;
  environment.device = device_.get();
  environment.ranks = std::max(load.world_size(), 1u);
  environment.trace_spans_max = load.trace_spans_max();
  executor_ = std::make_unique<StageExecutor>(
      environment, std::move(gate),
      [this, load](StepGate& gate, StageExecutor::Started& started) {
        return startStage(load, {registry_, descriptors_, events_, gate}, started);
      },
      [this](const GuardedResult& result) { fatal(result.status, result.of_peer); });
  const std::chrono::milliseconds interval(load.heartbeat_interval_ms());
  heartbeat_ = std::make_unique<Heartbeat>(service_.loop(), interval.count() > 0 ? interval : kHeartbeatDefault,
                                           load.device(), *edges_, *executor_, events_);
  return absl::OkStatus();
}

void Worker::dispatch(WorkerCommand command) {
  switch (command.command_case()) {
    case WorkerCommand::kOpenProducer:
      return edges_->open(command.open_producer());
    case WorkerCommand::kOpenConsumer:
      return edges_->open(command.open_consumer());
    case WorkerCommand::kRetireEdge:
      return edges_->retire(command.retire_edge().channel_id());
    case WorkerCommand::kRunStage:
      return executor_->submit(std::move(*command.mutable_run_stage()));
    case WorkerCommand::kCancel:
      return executor_->cancel(command.cancel().job_id());
    case WorkerCommand::kDiscardRefs:
      return edges_->discard(command.discard_refs());
    default:
      getLogger("worker")->error("unknown command {}: latentd and latent-worker are of different versions",
                                 static_cast<int>(command.command_case()));
  }
}

// ---- the end ------------------------------------------------------------------------------------------------

void Worker::fatal(const Status& status, bool of_peer) {
  getLogger("worker")->error("cannot start: {}", status.ToString());
  WorkerEvent event;
  *event.mutable_fatal()->mutable_status() = toProto(status);
  event.mutable_fatal()->set_of_peer(of_peer);
  events_.post(std::move(event));
  requestEnd({WorkerExit::kStartFailed, kFatalGrace});
}

void Worker::requestEnd(const End& end) {
  MutexLock lock(end_mutex_);
  if (!end_) end_ = end;
  end_changed_.notifyAll();
}

Worker::End Worker::waitForEnd() {
  MutexLock lock(end_mutex_);
  while (!end_)
    end_changed_.waitUntil(end_mutex_, clock_.now() + kLook);
  return *end_;
}

void Worker::takeDown(const End& end) {
  const Clock::TimePoint deadline = clock_.now() + end.grace;
  service_.loop().post([this, deadline] {
    service_.loop().addTimer(deadline, [this] { leave(WorkerExit::kGraceExpired, "the grace period is over"); });
  });
  {
    MutexLock lock(command_mutex_);
    ending_ = true;
  }
  heartbeat_.reset();
  if (executor_ != nullptr) {
    executor_->close(absl::CancelledError("the worker ends"));
    executor_->join(deadline);
  }
  // Consumers, then producers; the executor is no longer inside any of them.
  if (edges_ != nullptr) edges_->closeAll(deadline);
  control_->finish(std::min(deadline, clock_.now() + kStreamEndWait));
  control_.reset();
  executor_.reset();
  edges_.reset();
  lifeline_.reset();
}

}  // namespace latentd::worker
