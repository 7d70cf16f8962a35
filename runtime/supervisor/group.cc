#include "runtime/supervisor/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/nanoseconds.h"
#include "runtime/config/value.h"
#include "runtime/supervisor/flight_report.h"
#include "runtime/supervisor/group_contract.h"
#include "runtime/supervisor/limits.h"
#include "runtime/supervisor/status_proto.h"
#include "runtime/supervisor/timestamps.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

Group::Group(GroupIndex index, Deps deps)
    : index_(index),
      deps_(std::move(deps)),
      log_(getLogger("fleet")),
      workers_(spec().ranks()),
      restart_policy_(deps_.topology.restart, deps_.clock) {}

std::string Group::nameOf(Rank rank) const {
  return fmt::format("{} rank {} ({})", spec().name, rank.value, spec().stage);
}

// ---- start and end --------------------------------------------------------------------------------------------

void Group::start() {
  LATENTD_CHECK(state_ == State::kStopped || state_ == State::kBackingOff, "a group starts when none of it runs");
  next_start_.reset();
  if (epoch_.value != 0) ++restarts_;
  epoch_ = Epoch(epoch_.value + 1);
  state_ = State::kStarting;
  log_->info("{}: starting {} worker{}, epoch {}", spec().name, spec().ranks(), spec().ranks() == 1 ? "" : "s",
             epoch_.value);
  launchAll();
}

Status Group::makeShared() {
  shared_.reset();
  if (spec().ranks() == 1) return absl::OkStatus();
  counted_.assign(spec().ranks(), {});
  LATENTD_ASSIGN_OR_RETURN(shared_, RankShared::make(spec().ranks(), fmt::format("{}/ranks-{}-{}", deps_.runtime_dir,
                                                                                 index_.value, epoch_.value)));
  return absl::OkStatus();
}

void Group::launchAll() {
  if (const Status made = makeShared(); !made.ok()) return fail(std::nullopt, made, "load");
  for (uint32_t index = 0; index < spec().ranks(); ++index) {
    const WorkerId worker{index_, Rank(index)};
    if (const Status launched = deps_.launcher.launch(worker, epoch_); !launched.ok()) {
      fail(Rank(index), launched, "load");
      return;
    }
    workers_.enter(Rank(index), WorkerPhase::kStarting);
    deps_.health.expect(worker, "starting (deadlines.load)", deps_.topology.deadlines.load);
  }
}

void Group::fail(std::optional<Rank> rank, const Status& cause, const std::string& reason) {
  if (!runs()) return;
  suspicion_.reset();
  signal_.reset();
  const std::string_view phase = rank ? toString(workers_.at(*rank).phase) : "";
  const bool starting = rank && state_ == State::kStarting && workers_.at(*rank).phase != WorkerPhase::kAbsent;
  last_failure_ = annotate(cause, (rank ? nameOf(*rank) : spec().name) + (starting ? fmt::format(", {}", phase) : ""));
  log_->error("{}", messageOf(last_failure_));
  deps_.metrics.restarts.with(spec().name, reason).Increment();
  const std::optional<std::chrono::milliseconds> delay = restart_policy_.failed();
  next_start_.reset();
  if (ever_loaded_ && delay) next_start_ = deps_.clock.now() + *delay;
  state_ = State::kFailing;
  for (uint32_t index = 0; index < spec().ranks(); ++index) {
    const WorkerId worker{index_, Rank(index)};
    deps_.health.forget(worker);
    deps_.metrics.up.with(spec().name, std::to_string(index)).Set(0);
    countOperations(Rank(index));
    if (workers_.at(Rank(index)).phase == WorkerPhase::kAbsent) continue;
    workers_.enter(Rank(index), WorkerPhase::kKilled);
    deps_.launcher.kill(worker);
  }
  keepRecords();
  deps_.observer.onGroupFailed(*this, last_failure_);
  if (workers_.all(WorkerPhase::kAbsent)) allReaped();
}

void Group::suspect(std::optional<Rank> rank, const Status& met, const std::string& reason) {
  if (!runs()) return;
  if (!suspicion_) suspicion_ = Suspicion{rank, met, reason, deps_.clock.now() + kSuspicionTimeout, {}};
}

void Group::confirmSuspicion() {
  const Suspicion confirmed = *std::exchange(suspicion_, std::nullopt);
  fail(confirmed.rank, confirmed.met, confirmed.reason);
}

const FlightRecorder* Group::recorder() const {
  const bool failed = failure_record_ && failure_record_->epoch() == epoch_.value;
  return shared_ == nullptr || failed ? nullptr : &shared_->recorder();
}

void Group::keepRecords() {
  if (shared_ == nullptr) return;
  const int64_t now = toNanoseconds(deps_.clock.now());
  v1::GroupRecord& record = failure_record_.emplace();
  record.set_group(spec().name);
  record.set_epoch(epoch_.value);
  record.set_ended(true);
  record.set_ended_ns(now);
  *record.mutable_end_time() = toTimestamp(deps_.clock.wallNow());
  *record.mutable_cause() = toProto(last_failure_);
  supervisor::fill(shared_->recorder(), now, record);
  const auto idle = [](const FlightRecorder::Totals& totals) { return totals.operations == 0; };
  if (std::all_of(counted_.begin(), counted_.end(), idle)) return;
  for (const std::string& line : reportLines(shared_->recorder(), kOperationsLogged, now))
    log_->error("{}: {}", spec().name, line);
}

void Group::allReaped() {
  if (shared_ != nullptr) shared_->removeFiles();
  if (state_ == State::kStopping) {
    state_ = State::kStopped;
    return;
  }
  LATENTD_CHECK(state_ == State::kFailing, "workers are reaped because their group ends");
  if (next_start_) {
    state_ = State::kBackingOff;
    log_->info("{}: next start in {:.3f} s", spec().name,
               std::max(0.0, std::chrono::duration<double>(*next_start_ - deps_.clock.now()).count()));
    return;
  }
  state_ = State::kStopped;
  deps_.observer.onGroupGivenUp(*this, last_failure_);
}

Clock::TimePoint Group::nextDeadline() const {
  Clock::TimePoint next = state_ == State::kBackingOff ? *next_start_ : Clock::TimePoint::max();
  if (suspicion_) next = std::min(next, suspicion_->until);
  if (signal_) next = std::min(next, signal_->until);
  return next;
}

void Group::onTimer() {
  const Clock::TimePoint now = deps_.clock.now();
  if (signal_ && signal_->until <= now) {
    const SentSignal sent = *std::exchange(signal_, std::nullopt);
    const ExitStatus by_signal{.signaled = true, .value = sent.number};
    const WorkerPhase phase = workers_.at(sent.rank).phase;
    fail(sent.rank, absl::UnavailableError(describeDeath(phase, by_signal, {})), "signal");
  }
  if (suspicion_ && suspicion_->until <= now) confirmSuspicion();
  if (state_ == State::kBackingOff && *next_start_ <= deps_.clock.now()) start();
}

void Group::shutDown(std::chrono::milliseconds grace) {
  if (state_ == State::kStopped || state_ == State::kBackingOff) {
    state_ = State::kStopped;
    next_start_.reset();
    return;
  }
  const bool failing = std::exchange(state_, State::kStopping) == State::kFailing;
  if (failing) return;  // they are killed already
  wire::WorkerCommand command;
  command.mutable_shutdown()->set_grace_ms(static_cast<uint32_t>(grace.count()));
  for (uint32_t index = 0; index < spec().ranks(); ++index) {
    const WorkerId worker{index_, Rank(index)};
    deps_.health.forget(worker);
    const WorkerPhase phase = workers_.at(Rank(index)).phase;
    if (phase == WorkerPhase::kAbsent || phase == WorkerPhase::kStopping) continue;
    workers_.enter(Rank(index), WorkerPhase::kStopping);
    if (phase == WorkerPhase::kReady) {
      deps_.sink.send(worker, command);
    } else {
      // It may be deep inside a load that does not look at commands, and has nothing to drain.
      deps_.launcher.kill(worker);
    }
  }
}

void Group::killAll() {
  if (state_ == State::kStopped) return;
  next_start_.reset();
  state_ = workers_.all(WorkerPhase::kAbsent) ? State::kStopped : State::kStopping;
  for (uint32_t index = 0; index < spec().ranks(); ++index) {
    const WorkerPhase phase = workers_.at(Rank(index)).phase;
    if (phase == WorkerPhase::kAbsent || phase == WorkerPhase::kKilled) continue;
    deps_.health.forget({index_, Rank(index)});
    workers_.enter(Rank(index), WorkerPhase::kKilled);
    deps_.launcher.kill({index_, Rank(index)});
  }
}

// ---- what happens to workers ----------------------------------------------------------------------------------

wire::WorkerCommand Group::loadCommand(Rank rank) const {
  wire::WorkerCommand command;
  *command.mutable_load() = loadOf(deps_.topology, index_, rank);
  if (shared_ != nullptr) shared_->fill(*command.mutable_load());
  command.mutable_load()->set_trace_spans_max(deps_.topology.trace.spans_max);
  return command;
}

void Group::onRegistered(Rank rank) {
  if (state_ != State::kStarting) return;
  const WorkerId worker{index_, rank};
  workers_.enter(rank, WorkerPhase::kLoading);
  deps_.health.expect(worker, "loading (deadlines.load)", deps_.topology.deadlines.load);
  deps_.health.heartbeat(worker);
  if (shared_ != nullptr) {
    if (const Status sent = shared_->handTo(worker, deps_.sink); !sent.ok()) return fail(rank, sent, "load");
  }
  deps_.sink.send(worker, loadCommand(rank));
}

void Group::onPhase(Rank rank, const wire::PhaseProgress& progress) {
  if (state_ != State::kStarting) return;
  const WorkerId worker{index_, rank};
  WorkerRecord& record = workers_.at(rank);
  if (record.phase == WorkerPhase::kLoading && progress.phase() == toString(WorkerPhase::kWarmingUp)) {
    workers_.enter(rank, WorkerPhase::kWarmingUp);
    deps_.health.expect(worker, "warming up (deadlines.warm_up)", deps_.topology.deadlines.warm_up);
  }
  record.progress = progress;
  deps_.health.note(worker, fmt::format("{:.0f} %{}{}", progress.fraction() * 100,
                                        progress.detail().empty() ? "" : ", ", progress.detail()));
}

void Group::onReady(Rank rank, const wire::Ready& ready) {
  if (state_ != State::kStarting) return;
  WorkerRecord& record = workers_.at(rank);
  if (record.phase != WorkerPhase::kLoading && record.phase != WorkerPhase::kWarmingUp) return;
  record.ready = ready;
  if (const Status fits = checkMethod(deps_.topology, index_, ready.methods()); !fits.ok()) {
    return fail(rank, fits, "load");
  }
  workers_.enter(rank, WorkerPhase::kReady);
  deps_.health.settle({index_, rank});
  deps_.metrics.up.with(spec().name, std::to_string(rank.value)).Set(1);
  if (!workers_.all(WorkerPhase::kReady)) return;
  state_ = State::kLoaded;
  ever_loaded_ = true;
  setLoadMetrics();
  deps_.observer.onGroupLoaded(*this);
}

void Group::setLoadMetrics() {
  double load_seconds = 0;
  double warm_up_seconds = 0;
  uint64_t weight_bytes = 0;
  for (uint32_t index = 0; index < spec().ranks(); ++index) {
    const wire::Ready& ready = workers_.at(Rank(index)).ready;
    load_seconds = std::max(load_seconds, ready.load_seconds());
    warm_up_seconds = std::max(warm_up_seconds, ready.warm_up_seconds());
    weight_bytes += ready.weight_bytes();
  }
  deps_.metrics.model_load.with(spec().name).Set(load_seconds);
  deps_.metrics.warm_up.with(spec().name).Set(warm_up_seconds);
  deps_.metrics.model_weights.with(spec().name).Set(static_cast<double>(weight_bytes));
  if (spec().parallel.ulysses > 1) {
    const HeadTransport heads = headTransport(spec(), workers_.at(Rank(0)).ready);
    for (const config::UlyssesTransport transport : config::kUlyssesTransports)
      deps_.metrics.ulysses_info.with(spec().name, config::toString(transport)).Set(transport == heads.transport);
  }
  const std::string weights = weight_bytes == 0
                                  ? "no weights"
                                  : fmt::format("weights {:.1f} MiB", static_cast<double>(weight_bytes) / (1 << 20));
  log_->info("{}: ready, loaded in {:.3f} s, warmed up in {:.3f} s, {}", spec().name, load_seconds, warm_up_seconds,
             weights);
}

void Group::onFatal(Rank rank, const wire::Fatal& fatal) {
  const Status status = makeStatus(static_cast<absl::StatusCode>(fatal.status().code()), fatal.status().message());
  if (!fatal.of_peer()) return fail(rank, status, "load");
  suspect(rank, status, "load");
  if (suspicion_) suspicion_->ending.insert(rank);
}

void Group::onSignalled(Rank rank, int signal_number) {
  if (!runs() || !signals_count_ || signal_) return;
  signal_ = SentSignal{rank, signal_number, deps_.clock.now() + kDaemonSignalTimeout};
  deps_.observer.onGroupHeld(*this, true);
}

void Group::disregardSignals() {
  signals_count_ = false;
  if (std::exchange(signal_, std::nullopt)) deps_.observer.onGroupHeld(*this, false);
}

void Group::explain(wire::StageFailed& failed) const {
  const bool late = failed.status().code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded);
  if (!failed.of_peer() || !late || shared_ == nullptr) return;
  const std::string verdict = verdictOf(shared_->recorder(), toNanoseconds(deps_.clock.now()));
  failed.mutable_status()->set_message(
      fmt::format("{} (deadlines.collective){}{}", failed.status().message(), verdict.empty() ? "" : "; ", verdict));
}

void Group::countOperations(Rank rank) {
  if (shared_ == nullptr) return;
  FlightRecorder::Totals& counted = counted_[rank.value];
  const FlightRecorder::Totals now = shared_->recorder().totals(rank);
  if (now.operations < counted.operations || now.bytes_sent < counted.bytes_sent) return;  // it wrote what it must not
  const std::string label = std::to_string(rank.value);
  deps_.metrics.mesh_operations.with(spec().name, label)
      .Increment(static_cast<double>(now.operations - counted.operations));
  deps_.metrics.mesh_bytes.with(spec().name, label).Increment(static_cast<double>(now.bytes_sent - counted.bytes_sent));
  counted = now;
}

std::string Group::describeDeath(WorkerPhase phase, const ExitStatus& status,
                                 const std::vector<std::string>& last_lines) const {
  const std::string work = state_ == State::kLoaded ? deps_.observer.workOf(*this) : "";
  std::string message =
      fmt::format("died while {}: {}", work.empty() ? std::string(toString(phase)) : work, status.describe());
  if (state_ == State::kStarting && spec().memory_bytes_max) {
    message +=
        fmt::format("; memory_max is {}: is that enough for the model?", config::formatBytes(*spec().memory_bytes_max));
  }
  if (!last_lines.empty()) message += "; its last lines:";
  for (const std::string& line : last_lines)
    message += "\n  " + line;
  return message;
}

void Group::onExit(Rank rank, const ExitStatus& status, const std::vector<std::string>& last_lines) {
  const WorkerPhase phase = workers_.at(rank).phase;
  workers_.enter(rank, WorkerPhase::kAbsent);
  deps_.health.forget({index_, rank});
  if (suspicion_ && suspicion_->ending.count(rank) != 0 && !status.signaled) {
    if (workers_.all(WorkerPhase::kAbsent)) confirmSuspicion();
    return;
  }
  if (runs()) {
    fail(rank, absl::UnavailableError(describeDeath(phase, status, last_lines)), status.signaled ? "signal" : "exit");
    return;
  }
  if (workers_.all(WorkerPhase::kAbsent)) allReaped();
}

}  // namespace latentd::supervisor
