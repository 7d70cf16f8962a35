#include "runtime/supervisor/supervisor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {
namespace {

constexpr const char* kControlSocket = "control.sock";
// How often the log says what a start still waits for: often enough to see life, seldom enough to read.
constexpr std::chrono::seconds kProgressLogInterval{2};
// Longer than a loaded machine delays a timer, and than it takes to read what lies in the streams.
constexpr std::chrono::milliseconds kHeldUp{500};

}  // namespace

Supervisor::Supervisor(Deps deps)
    : deps_(std::move(deps)),
      log_(getLogger("supervisor")),
      job_metrics_(deps_.registry),
      edge_metrics_(deps_.registry),
      worker_metrics_(deps_.registry),
      edge_monitor_(deps_.topology, edge_metrics_),
      fleet_(deps_.topology, deps_.clock, worker_metrics_, *this, deps_.runtime_dir.path()),
      jobs_(jobDeps()),
      shutdown_(deps_.clock, deps_.topology.deadlines.shutdown_grace),
      next_progress_log_(deps_.clock.now() + kProgressLogInterval),
      launcher_({deps_.worker_binary, deps_.runtime_dir.file(kControlSocket), deps_.topology.log.level}, deps_.topology,
                deps_.loop, deps_.spawner, *this),
      service_(deps_.loop, *this) {
  fleet_.connect(service_, launcher_);
  const std::vector<std::string> stages = deps_.topology.stageNames();
  job_metrics_.expect(stages);
  for (const config::GroupSpec& group : deps_.topology.groups) {
    worker_metrics_.expect(group.name, group.ranks());
    job_metrics_.stage_commands.with(stages[group.place], group.name);
  }
  std::vector<std::string> edges;
  for (const config::LinkSpec& link : deps_.topology.links)
    edges.push_back(link.name);
  edge_metrics_.expect(edges);
  for (const config::EdgeSpec& edge : deps_.topology.edges)
    edge_metrics_.info.with(edges[edge.link], std::string(config::toString(edge.transport))).Increment();
}

Supervisor::~Supervisor() {
  if (timer_) deps_.loop.cancelTimer(*timer_);
  service_.stop();
}

JobManager::Deps Supervisor::jobDeps() {
  return {.topology = deps_.topology,
          .clock = deps_.clock,
          .outputs = deps_.outputs,
          .metrics = job_metrics_,
          .sink = fleet_,
          .random = deps_.random,
          .post =
              [this](std::function<void()> task) {
                return deps_.loop.post([this, task = std::move(task)] {
                  task();
                  settle();
                });
              },
          .group_unusable = [this](GroupIndex group, const Status& cause) { fleet_.recycle(group, cause); },
          .group_suspect = [this](GroupIndex group, const Status& met) { fleet_.suspect(group, met); }};
}

Status Supervisor::start() {
  LATENTD_RETURN_IF_ERROR(service_.start(deps_.runtime_dir.file(kControlSocket)));
  fleet_.start();
  settle();
  return absl::OkStatus();
}

// ---- the turn of the loop -------------------------------------------------------------------------------------

void Supervisor::settle() {
  if (ended_) return;
  jobs_.pump();
  advanceShutdown();
  if (!ended_) setTimer();
}

void Supervisor::setTimer() {
  Clock::TimePoint next = std::min({fleet_.nextDeadline(), jobs_.nextDeadline(), shutdown_.nextDeadline()});
  if (!announced_) next = std::min(next, next_progress_log_);
  next = std::max(next, no_timer_before_);
  // An armed timer that comes too early finds nothing to do and sets the right one: cheaper than moving it each time.
  if (timer_ && timer_->first <= next) return;
  if (timer_) deps_.loop.cancelTimer(*timer_);
  timer_.reset();
  if (next == Clock::TimePoint::max()) return;
  timer_ = deps_.loop.addTimer(next, [this, next] {
    timer_.reset();
    onTimer(next);
  });
}

bool Supervisor::heldUp(Clock::TimePoint due) {
  const Clock::TimePoint now = deps_.clock.now();
  was_held_up_ = !was_held_up_ && due + kHeldUp < now;
  if (was_held_up_) no_timer_before_ = now + kHeldUp;
  return was_held_up_;
}

void Supervisor::onTimer(Clock::TimePoint due) {
  if (ended_) return;
  if (heldUp(due)) return setTimer();
  fleet_.onTimer();
  jobs_.onTimer();
  if (!announced_ && next_progress_log_ <= deps_.clock.now()) logProgress();
  settle();
}

void Supervisor::logProgress() {
  next_progress_log_ = deps_.clock.now() + kProgressLogInterval;
  const std::string progress = messageOf(fleet_.readiness());
  if (progress != std::exchange(last_progress_, progress)) log_->info("waiting: {}", progress);
}

void Supervisor::onEvents(ConnectionId connection, const internal::v1::WorkerEvents& batch) {
  fleet_.onEvents(connection, batch);
  settle();
}

void Supervisor::onClosed(ConnectionId connection) {
  fleet_.onClosed(connection);
  settle();
}

void Supervisor::onWorkerExit(WorkerId worker, const ExitStatus& status, const std::vector<std::string>& last_lines) {
  fleet_.onWorkerExit(worker, status, last_lines);
  settle();
}

// ---- what the fleet tells -------------------------------------------------------------------------------------

void Supervisor::onEdgeOpen(EdgeIndex edge, ChannelId channel) {
  jobs_.dispatcher().edgeOpened(edge, channel);
  jobs_.onGroupsMoved();
}

void Supervisor::onGroupReady(GroupIndex group) {
  jobs_.dispatcher().groupReady(group);
  jobs_.onGroupsMoved();
}

void Supervisor::onGroupHeld(GroupIndex group, bool held) {
  jobs_.dispatcher().groupHeld(group, held);
  jobs_.onGroupsMoved();
}

void Supervisor::onFleetReady() {
  const JobLimits limits = mergeLimits(fleet_.stageLimits(), deps_.topology.limits, deps_.topology.defaults);
  // Only now is it known what the model takes.
  v1::JobParameters bare;
  bare.set_prompt("x");
  const Status defaults = effectiveParameters(bare, limits, 0).status();
  if (!defaults.ok()) log_->warn("jobs that rely on the defaults will be refused: {}", messageOf(defaults));
  jobs_.setLimits(limits);
  if (std::exchange(announced_, true)) {
    log_->info("serving again");
    return;
  }
  deps_.on_ready();
}

void Supervisor::onGroupLost(GroupIndex group, const Status& cause) {
  jobs_.dispatcher().groupLost(group, cause);
  jobs_.onGroupsMoved();
  for (uint32_t edge = 0; edge < deps_.topology.edges.size(); ++edge) {
    const config::EdgeSpec& spec = deps_.topology.edges[edge];
    if (spec.from == group.value || spec.to == group.value) edge_monitor_.onClosed(EdgeIndex(edge));
  }
}

void Supervisor::onFleetFailed(const Status& cause) { end(cause); }

void Supervisor::onWorkReport(WorkerId worker, const internal::v1::WorkerEvent& event) {
  using Event = internal::v1::WorkerEvent;
  // First: the job may end with the rest.
  countEdges(worker, event.edges());
  Dispatcher& dispatcher = jobs_.dispatcher();
  switch (event.event_case()) {
    case Event::kStarted:
      return dispatcher.onStarted(worker, event.started());
    case Event::kInputsConsumed:
      return dispatcher.onInputsConsumed(worker, event.inputs_consumed());
    case Event::kProgress:
      return dispatcher.onProgress(worker, event.progress());
    case Event::kDone:
      traceAnswer(worker, event.done().job_id(), event.done().trace());
      return dispatcher.onDone(worker, event.done());
    case Event::kFailed:
      traceAnswer(worker, event.failed().job_id(), event.failed().trace());
      return dispatcher.onFailed(worker, event.failed());
    case Event::kRefsDiscarded:
      return dispatcher.onDiscarded(worker, event.refs_discarded());
    case Event::kTransfer: {
      const internal::v1::TransferDone& transfer = event.transfer();
      const ChannelId channel(transfer.artifact().channel_id());
      const std::optional<EdgeIndex> edge = fleet_.edgeOf(channel);
      if (!edge) return;
      edge_monitor_.onTransfer(*edge, worker.rank, transfer);
      const auto job = dispatcher.jobOf(*edge, channel, SequenceNumber(transfer.artifact().sequence()));
      if (!job) return;
      jobs_.traces().onTransfer(*job, worker, deps_.topology.edges[edge->value].name, transfer);
      jobs_.addTransfer(*job, *edge, worker.rank, transfer);
      // Last: the job may end with it.
      dispatcher.onTransfer(*job, worker, *edge, transfer);
      return;
    }
    default:
      return;  // the fleet's own events
  }
}

void Supervisor::countEdges(WorkerId worker, const google::protobuf::RepeatedPtrField<internal::v1::EdgeStats>& edges) {
  for (const internal::v1::EdgeStats& stats : edges) {
    const auto edge = fleet_.edgeOf(ChannelId(stats.channel_id()));
    if (edge) edge_monitor_.onStats(*edge, worker, stats);
  }
}

void Supervisor::traceAnswer(WorkerId worker, const JobId& job, const internal::v1::CommandTrace& trace) {
  jobs_.traces().onAnswer(job, worker, trace, [this](ChannelId channel) {
    const std::optional<EdgeIndex> edge = fleet_.edgeOf(channel);
    return edge ? deps_.topology.edges[edge->value].name : std::string();
  });
}

// ---- the end --------------------------------------------------------------------------------------------------

void Supervisor::interrupt() {
  if (ended_) return;
  if (std::exchange(interrupted_, true)) {
    log_->warn("second signal: killing the workers");
    fleet_.killAll();
    end(absl::AbortedError("killed by a second signal"));
    return;
  }
  const auto seconds = [](std::chrono::duration<double> duration) { return duration.count(); };
  log_->info(
      "shutting down: running jobs may finish for {:g} s, then are cancelled; ended within {:g} s; a second "
      "signal kills",
      seconds(shutdown_.jobGrace()), seconds(deps_.topology.deadlines.shutdown_grace));
  fleet_.disregardSignals();
  jobs_.close("the daemon shuts down");
  jobs_.cancelQueued("cancelled because the daemon shuts down");
  shutdown_.interrupt();
  settle();
}

void Supervisor::advanceShutdown() {
  while (!ended_ && shutdown_.advance(jobs_.idle())) {
    if (shutdown_.phase() == Shutdown::Phase::kCancelling) {
      if (!jobs_.idle()) log_->info("cancelling what did not finish in time: {} unfinished", jobs_.unfinished());
      jobs_.cancelAll("cancelled because the daemon shuts down");
    } else {
      fleet_.shutDown(shutdown_.workerGrace(), [this] { end(absl::OkStatus()); });
    }
  }
}

void Supervisor::end(const Status& outcome) {
  if (std::exchange(ended_, true)) return;
  outcome_ = outcome;
  deps_.loop.stop();
}

// ---- JobService -----------------------------------------------------------------------------------------------

template <class Task>
std::invoke_result_t<Task> Supervisor::answer(std::chrono::nanoseconds timeout, Task task) {
  using Result = std::invoke_result_t<Task>;
  std::optional<Result> result = callOnLoop(deps_.loop, timeout, [this, task = std::move(task)]() mutable {
    Result made = task();
    settle();
    return made;
  });
  if (result) return *std::move(result);
  if constexpr (std::is_constructible_v<Result, Status>) {
    return Result(absl::UnavailableError("the daemon does not answer: it is ending or overloaded"));
  } else {
    return Result();
  }
}

StatusOr<v1::Job> Supervisor::submit(const v1::SubmitRequest& request) {
  return answer(kLoopAnswerTimeout, [this, request] { return jobs_.submit(request); });
}

StatusOr<v1::Job> Supervisor::get(const JobId& id) {
  return answer(kLoopAnswerTimeout, [this, id] { return jobs_.get(id); });
}

StatusOr<v1::ListJobsResponse> Supervisor::list(const v1::ListJobsRequest& request) {
  return answer(kLoopAnswerTimeout, [this, request] { return jobs_.list(request); });
}

StatusOr<v1::Job> Supervisor::cancel(const JobId& id) {
  return answer(kLoopAnswerTimeout, [this, id] { return jobs_.cancel(id, "cancelled on request"); });
}

StatusOr<std::unique_ptr<JobService::Watch>> Supervisor::watch(const JobId& id, WatchCallback callback) {
  return answer(kLoopAnswerTimeout,
                [this, id, callback = std::move(callback)]() mutable { return jobs_.watch(id, std::move(callback)); });
}

StatusOr<ResultFile> Supervisor::openResult(const JobId& id) {
  return answer(kLoopAnswerTimeout, [this, id] { return jobs_.openResult(id); });
}

Status Supervisor::remove(const JobId& id) {
  return answer(kLoopAnswerTimeout, [this, id] { return jobs_.remove(id); });
}

StatusOr<std::vector<v1::TraceTrack>> Supervisor::trace(const JobId& id) {
  return answer(kLoopAnswerTimeout, [this, id] { return jobs_.trace(id); });
}

v1::Topology Supervisor::topology() {
  return answer(kLoopAnswerTimeout, [this] {
    v1::Topology topology;
    fleet_.fill(
        topology, [this](GroupIndex group) { return jobs_.dispatcher().isBusy(group); }, deps_.place_of);
    topology.mutable_edges()->Swap(edge_monitor_.report().mutable_edges());
    if (jobs_.limits()) *topology.mutable_limits() = toProto(*jobs_.limits());
    return topology;
  });
}

v1::GetEdgesResponse Supervisor::edges() {
  return answer(kLoopAnswerTimeout, [this] { return edge_monitor_.report(); });
}

StatusOr<v1::FlightRecords> Supervisor::flightRecords(const std::string& group) {
  return answer(kLoopAnswerTimeout, [this, group] { return fleet_.flightRecords(group); });
}

uint32_t Supervisor::drain(std::chrono::milliseconds deadline) {
  return answer(kLoopAnswerTimeout, [this, deadline] {
    log_->info("draining: {} left, within {:g} s",
               jobs_.unfinished() == 1 ? "1 job is" : fmt::format("{} jobs are", jobs_.unfinished()),
               std::chrono::duration<double>(deadline).count());
    jobs_.close("the daemon drains");
    shutdown_.drain(deadline);
    return static_cast<uint32_t>(jobs_.unfinished());
  });
}

Status Supervisor::live() {
  return answer(kLiveAnswerTimeout, [] { return absl::OkStatus(); });
}

Status Supervisor::ready() {
  return answer(kLiveAnswerTimeout, [this] { return readiness(); });
}

Status Supervisor::readiness() const {
  if (shutdown_.phase() != Shutdown::Phase::kServing) return absl::UnavailableError("the daemon is draining");
  LATENTD_RETURN_IF_ERROR(fleet_.readiness());
  // What should have happened by now has: the dispatcher and its timers move.
  if (jobs_.nextDeadline() < deps_.clock.now() - kLiveAnswerTimeout) {
    return absl::UnavailableError("the dispatcher does not move");
  }
  return absl::OkStatus();
}

}  // namespace latentd::supervisor
