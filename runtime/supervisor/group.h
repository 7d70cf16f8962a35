#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/api.pb.h"
#include "proto/worker.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/flight_recorder.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/command_sink.h"
#include "runtime/supervisor/health_monitor.h"
#include "runtime/supervisor/rank_shared.h"
#include "runtime/supervisor/restart_policy.h"
#include "runtime/supervisor/worker_id.h"
#include "runtime/supervisor/worker_launcher.h"
#include "runtime/supervisor/worker_table.h"

namespace latentd::supervisor {

class Group;

// Told by a group. Called on the supervisor's loop.
class GroupObserver {
 public:
  virtual ~GroupObserver() = default;
  // Every rank has loaded and warmed up: channels can open.
  virtual void onGroupLoaded(const Group& group) = 0;
  // It failed; its processes are being killed. Once an epoch, with the first cause.
  virtual void onGroupFailed(const Group& group, const Status& cause) = 0;
  // True: it is about to be lost, unless the daemon ends: it is to begin nothing. False: it goes on.
  virtual void onGroupHeld(const Group& group, bool held) = 0;
  // It will not be started again.
  virtual void onGroupGivenUp(const Group& group, const Status& cause) = 0;
  // "running job 12ab, step 3 of 16"; empty: nothing.
  virtual std::string workOf(const Group& group) const = 0;
};

// The workers of one stage, which live and die together: they start as one, and the first failure of any kills all.
// Owner: Fleet. Thread: the supervisor's loop.
// States: stopped -> starting -> loaded -> (failing -> backing off -> starting)* ; stopping -> stopped from any.
// Failure: the first cause of an epoch wins and is reported; everything later of that epoch is its consequence. What a
// rank met of another may come first: it waits for kSuspicionTimeout, and is told if nobody says more. A group is
// started again, with the next epoch, once all its processes are reaped and its back-off has passed.
class Group {
 public:
  enum class State {
    kStopped,     // no process; the beginning and the end
    kStarting,    // processes run; not every rank is ready
    kLoaded,      // every rank is ready
    kFailing,     // killed; not every process is reaped
    kBackingOff,  // waits for its next start
    kStopping,    // told to end, or killed by the daemon's end
  };

  struct Deps {
    const config::Topology& topology;
    const Clock& clock;
    WorkerLauncher& launcher;
    CommandSink& sink;
    HealthMonitor& health;
    metrics::WorkerMetrics& metrics;
    GroupObserver& observer;
    std::string runtime_dir;  // its ranks find each other by files in it
  };
  Group(GroupIndex index, Deps deps);

  GroupIndex index() const { return index_; }
  const config::GroupSpec& spec() const { return deps_.topology.groups[index_.value]; }
  State state() const { return state_; }
  // Its processes run, and none has failed.
  bool runs() const { return state_ == State::kStarting || state_ == State::kLoaded; }
  Epoch epoch() const { return epoch_; }
  const Status& lastFailure() const { return last_failure_; }
  uint64_t restarts() const { return restarts_; }
  WorkerTable& workers() { return workers_; }
  const WorkerTable& workers() const { return workers_; }
  // What the model's stage accepts, merged by the caller; valid once loaded.
  const v1::ModelLimits& limits() const { return workers_.at(Rank(0)).ready.limits(); }

  // A failed first start is given up at once; later ones are tried again.
  void start();
  // Consumers' and producers' order is the caller's business. Kills at the end of grace are too.
  void shutDown(std::chrono::milliseconds grace);
  // Without grace, for the end of the daemon.
  void killAll();

  // ---- what happens to its workers; the caller has matched connection and epoch
  void onRegistered(Rank rank);
  void onPhase(Rank rank, const internal::v1::PhaseProgress& progress);
  void onReady(Rank rank, const internal::v1::Ready& ready);
  void onFatal(Rank rank, const internal::v1::Fatal& fatal);
  void onHeartbeat(Rank rank) { countOperations(rank); }
  // Somebody wants this rank gone: its group is lost as by a kill, unless the daemon is sent a signal too.
  void onSignalled(Rank rank, int signal_number);
  // The daemon was sent one and drains: those of its workers are of the same sender.
  void disregardSignals();
  // A rank that waited in vain for another does not know for which: adds who that is, and the deadline's key.
  void explain(internal::v1::StageFailed& failed) const;
  void onExit(Rank rank, const ExitStatus& status, const std::vector<std::string>& last_lines);
  // Anything that ends this epoch; reason is the metric's label.
  void fail(std::optional<Rank> rank, const Status& cause, const std::string& reason);
  // A rank met the failure or the end of another, so that the epoch cannot go on.
  void suspect(std::optional<Rank> rank, const Status& met, const std::string& reason);
  // Its channels are open: it serves.
  void served() { restart_policy_.served(); }

  // ---- time
  // The latest time there is unless it backs off, is suspected or was sent a signal: until its processes are reaped, no
  // timer brings it further.
  Clock::TimePoint nextDeadline() const;
  void onTimer();

  // What its ranks do with each other; null once the epoch has failed, and for a group of one rank.
  const FlightRecorder* recorder() const;
  // What they had done when its last failure ended an epoch; null before the first.
  const v1::GroupRecord* failureRecord() const { return failure_record_ ? &*failure_record_ : nullptr; }

 private:
  // The epoch's end as those met it who did not cause it.
  struct Suspicion {
    std::optional<Rank> rank;
    Status met;
    std::string reason;
    Clock::TimePoint until;
    std::set<Rank> ending;  // they said so when they could not start: their exits tell nothing
  };

  struct SentSignal {
    Rank rank;
    int number;
    Clock::TimePoint until;
  };

  internal::v1::WorkerCommand loadCommand(Rank rank) const;
  Status makeShared();
  void confirmSuspicion();
  void keepRecords();
  // Into the metrics, what has come since the last time.
  void countOperations(Rank rank);
  void launchAll();
  void allReaped();
  void setLoadMetrics();
  std::string nameOf(Rank rank) const;
  std::string describeDeath(WorkerPhase phase, const ExitStatus& status,
                            const std::vector<std::string>& last_lines) const;

  const GroupIndex index_;
  Deps deps_;
  Logger log_;
  WorkerTable workers_;
  RestartPolicy restart_policy_;
  State state_ = State::kStopped;
  Epoch epoch_;
  Status last_failure_;
  uint64_t restarts_ = 0;
  bool ever_loaded_ = false;
  std::unique_ptr<RankShared> shared_;           // of this epoch; only for several ranks
  std::vector<FlightRecorder::Totals> counted_;  // of this epoch, by rank: what the metrics have
  std::optional<v1::GroupRecord> failure_record_;
  std::optional<Suspicion> suspicion_;
  std::optional<SentSignal> signal_;
  bool signals_count_ = true;
  std::optional<Clock::TimePoint> next_start_;
};

}  // namespace latentd::supervisor
