#include "runtime/worker/stage_executor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/worker/device_memory.h"
#include "runtime/worker/process_memory.h"

namespace latentd::worker {
namespace {

// Idle memory kept for received tensors: two artifacts of a large latent, so that a steady pipeline faults in no page.
constexpr uint64_t kIdleReceiveBytesMax = uint64_t{256} << 20;
// A process that cannot get this much after a job ran out of memory cannot run the next one either.
constexpr uint64_t kProbeBytes = uint64_t{64} << 20;
// Unless it had less to begin with: then a new process would have no more, and is worth its start only if this one has
// lost half of that.
constexpr uint64_t kKeptShare = 2;
// Every wait has a deadline; this one only makes the thread look again.
constexpr std::chrono::seconds kIdleWait{60};

Status cancelledJob(const std::string& job_id) {
  return absl::CancelledError("job " + job_id + " was cancelled before this stage began");
}

}  // namespace

StageExecutor::StageExecutor(const Environment& environment, StepGate gate, StartUp start_up,
                             StartFailed on_start_failed)
    : gate_(std::move(gate)),
      environment_{.channels = environment.channels,
                   .events = environment.events,
                   .descriptors = environment.descriptors,
                   .gate = &gate_,
                   .stall = &stall_,
                   .alone = environment.ranks == 1,
                   .on_device = environment.device->device().type == channel::DeviceType::kCuda,
                   .trace_spans_max = environment.trace_spans_max},
      device_(*environment.device),
      start_up_(std::move(start_up)),
      on_start_failed_(std::move(on_start_failed)),
      thread_([this] { run(); }) {}

StageExecutor::~StageExecutor() {
  close(absl::CancelledError("the worker ends"));
  thread_.join();
}

// ---- from other threads -------------------------------------------------------------------------------------

void StageExecutor::endAll(const Commands& commands, const Status& reason) {
  for (const auto& command : commands) {
    if (gate_.isLead()) gate_.stop(command->run, 0);
    endUnrun(*command, reason, environment_);
  }
}

void StageExecutor::submit(internal::v1::RunStage message) {
  auto command = std::make_unique<StageCommand>();
  command->message = std::move(message);
  Commands refused;
  Status reason;
  {
    MutexLock lock(mutex_);
    command->run = ++commands_seen_;
    reason = refusal_;
    if (reason.ok() && queue_.size() >= kCommandsMax) {
      reason = absl::ResourceExhaustedError("a worker takes " + std::to_string(kCommandsMax) + " commands ahead");
    }
    (reason.ok() ? queue_ : refused).push_back(std::move(command));
  }
  changed_.notifyAll();  // not under the lock, which the woken thread takes
  endAll(refused, reason);
}

void StageExecutor::markCancelled(const std::string& job_id) {
  for (const auto& command : queue_) {
    if (command->message.job_id() == job_id) command->cancel.request_stop();
  }
}

StageExecutor::Commands StageExecutor::takeStopped() {
  Commands taken;
  for (auto command = queue_.begin(); command != queue_.end();) {
    bool end = (*command)->cancel.stop_requested();
    if (end && !gate_.isLead()) {
      // The lead may have begun it before it was told: then this rank runs it until the lead stops it.
      const auto decision = gate_.decision((*command)->run, 0);
      end = decision.ok() && *decision == StepGate::Decision::kStop;
    }
    if (!end) {
      ++command;
      continue;
    }
    taken.push_back(std::move(*command));
    command = queue_.erase(command);
  }
  return taken;
}

void StageExecutor::cancel(const std::string& job_id) {
  Commands cancelled;
  std::optional<std::stop_source> running;
  {
    MutexLock lock(mutex_);
    markCancelled(job_id);
    cancelled = takeStopped();
    if (running_ && running_->first == job_id) running = running_->second;
  }
  // Outside the lock: it wakes waits of channels and of the frame ring.
  if (running) running->request_stop();
  endAll(cancelled, cancelledJob(job_id));
}

void StageExecutor::endStopped() {
  if (gate_.isLead()) return;
  Commands stopped;
  {
    MutexLock lock(mutex_);
    stopped = takeStopped();
  }
  for (const auto& command : stopped)
    endUnrun(*command, cancelledJob(command->message.job_id()), environment_);
}

void StageExecutor::close(const Status& reason) {
  Commands queued;
  std::optional<std::stop_source> running;
  {
    MutexLock lock(mutex_);
    if (refusal_.ok()) refusal_ = reason;
    closed_ = true;
    queued.swap(queue_);
    if (running_) running = running_->second;
    changed_.notifyAll();
  }
  if (running) running->request_stop();
  endAll(queued, reason);
}

bool StageExecutor::join(Clock::TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!ended_) {
    if (!changed_.waitUntil(mutex_, deadline)) return ended_;
  }
  return true;
}

// ---- the executor's thread ----------------------------------------------------------------------------------

void StageExecutor::run() {
  ::pthread_setname_np(::pthread_self(), "executor");
  device_.enter();
  receive_buffers_ = device_.makeAllocator(kIdleReceiveBytesMax);
  Started started;
  const GuardedResult result = start_up_(gate_, started);
  probe_bytes_ = std::min(kProbeBytes, mappableBytes() / kKeptShare);
  environment_.mesh = started.mesh.get();
  if (result.status.ok()) {
    runCommands(*started.stage);
  } else {
    failStart(result, started.mesh.get());
  }
  // A stage may throw when it lets go of what it holds.
  const GuardedResult destroyed = runGuarded([&] {
    started.stage.reset();
    started.mesh.reset();
    return absl::OkStatus();
  });
  if (!destroyed.status.ok()) getLogger("executor")->warn("destroying the stage: {}", destroyed.status.ToString());
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.notifyAll();
}

void StageExecutor::failStart(const GuardedResult& result, mesh::Mesh* mesh) {
  close(annotate(result.status, "the stage did not start"));
  on_start_failed_(result);
  // The others may wait for this rank in a collective of their start.
  if (mesh != nullptr) endMesh(*mesh, "did not start", result.status);
}

void StageExecutor::runCommands(stages::Stage& stage) {
  while (const std::unique_ptr<StageCommand> command = next()) {
    execute(*command, stage);
    MutexLock lock(mutex_);
    running_.reset();
  }
}

std::unique_ptr<StageCommand> StageExecutor::next() {
  MutexLock lock(mutex_);
  while (queue_.empty() && !closed_)
    changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kIdleWait);
  if (queue_.empty()) return nullptr;
  std::unique_ptr<StageCommand> command = std::move(queue_.front());
  queue_.pop_front();
  running_.emplace(command->message.job_id(), command->cancel);
  return command;
}

void StageExecutor::execute(const StageCommand& command, stages::Stage& stage) {
  StageRun run(command, stage, *receive_buffers_, environment_);
  GuardedResult result = run.execute();
  if (result.status.ok()) return;
  if (result.status.code() == absl::StatusCode::kResourceExhausted) {
    receive_buffers_ = device_.makeAllocator(kIdleReceiveBytesMax);
    result.clean = result.clean && releaseAndProbe(probe_bytes_) && releaseAndProbeDevices(kProbeBytes);
  }
  if (!result.clean) {
    Commands queued;
    const Status reason = absl::UnavailableError("the worker is recycled after: " + messageOf(result.status));
    {
      MutexLock lock(mutex_);
      if (refusal_.ok()) refusal_ = reason;
      queued.swap(queue_);
    }
    endAll(queued, reason);
  }
  run.reportFailed(result);
}

}  // namespace latentd::worker
