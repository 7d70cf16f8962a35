#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/base/child_spawner.h"
#include "runtime/base/clock.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/media/output.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/edge_monitor.h"
#include "runtime/supervisor/fleet.h"
#include "runtime/supervisor/job_manager.h"
#include "runtime/supervisor/job_service.h"
#include "runtime/supervisor/loop_call.h"
#include "runtime/supervisor/process_launcher.h"
#include "runtime/supervisor/runtime_dir.h"
#include "runtime/supervisor/shutdown.h"
#include "runtime/supervisor/worker_service.h"

namespace latentd::supervisor {

// The daemon's heart: joins jobs, workers and their streams on one loop, and gives the API its JobService.
// Owner: the main. Thread: JobService's calls from any; start() and interrupt() on the loop's thread, or before
// it runs. The loop runs on the caller's thread and is stopped by this object when all has ended.
// States: new -> starting -> serving (and recovering) -> ending -> ended (the loop stops).
// Failure: a start that cannot succeed ends it with the first cause, see outcome().
class Supervisor final : public JobService, private FleetHost, private ControlHandler, private ExitObserver {
 public:
  struct Deps {
    const config::Topology& topology;
    const Clock& clock;
    EventLoop& loop;
    ChildSpawner& spawner;
    media::OutputFactory& outputs;
    metrics::Registry& registry;
    const RuntimeDir& runtime_dir;
    std::string worker_binary;
    std::function<uint64_t()> random;  // ids and seeds
    std::function<void()> on_ready;    // once, when jobs are first accepted
    Fleet::PlaceOf place_of;
  };
  explicit Supervisor(Deps deps);
  ~Supervisor() override;

  // Listens on the control socket and starts every worker.
  Status start();
  // SIGINT or SIGTERM: the first drains and ends the daemon within its grace, the second kills.
  void interrupt();
  // OK after an orderly end; else why the daemon ended.
  const Status& outcome() const { return outcome_; }

  // ---- JobService
  StatusOr<v1::Job> submit(const v1::SubmitRequest& request) override;
  StatusOr<v1::Job> get(const JobId& id) override;
  StatusOr<v1::ListJobsResponse> list(const v1::ListJobsRequest& request) override;
  StatusOr<v1::Job> cancel(const JobId& id) override;
  StatusOr<std::unique_ptr<Watch>> watch(const JobId& id, WatchCallback callback) override;
  StatusOr<ResultFile> openResult(const JobId& id) override;
  Status remove(const JobId& id) override;
  StatusOr<std::vector<v1::TraceTrack>> trace(const JobId& id) override;
  v1::Topology topology() override;
  v1::GetEdgesResponse edges() override;
  StatusOr<v1::FlightRecords> flightRecords(const std::string& group) override;
  uint32_t drain(std::chrono::milliseconds deadline) override;
  Status live() override;
  Status ready() override;

 private:
  // ---- FleetHost
  void onEdgeOpen(EdgeIndex edge, ChannelId channel) override;
  void onGroupReady(GroupIndex group) override;
  void onFleetReady() override;
  void onGroupLost(GroupIndex group, const Status& cause) override;
  void onGroupHeld(GroupIndex group, bool held) override;
  void onFleetFailed(const Status& cause) override;
  std::string workOf(GroupIndex group) const override { return jobs_.dispatcher().describeWork(group); }
  void onWorkReport(WorkerId worker, const internal::v1::WorkerEvent& event) override;
  // ---- ControlHandler, ExitObserver: the fleet's, and what follows from them
  void onEvents(ConnectionId connection, const internal::v1::WorkerEvents& batch) override;
  void onClosed(ConnectionId connection) override;
  void onWorkerExit(WorkerId worker, const ExitStatus& status, const std::vector<std::string>& last_lines) override;

  void countEdges(WorkerId worker, const google::protobuf::RepeatedPtrField<internal::v1::EdgeStats>& edges);
  void traceAnswer(WorkerId worker, const JobId& job, const internal::v1::CommandTrace& trace);
  // Runs the task on the loop, then what follows from it.
  template <class Task>
  std::invoke_result_t<Task> answer(std::chrono::nanoseconds timeout, Task task);
  JobManager::Deps jobDeps();
  // After anything that happened: sends what can go, moves the shutdown on, sets the timer.
  void settle();
  void setTimer();
  void onTimer(Clock::TimePoint due);
  // A timer this late was held up with its process (SIGSTOP, a debugger): what was said meanwhile lies unread and looks
  // like silence. True once; the timers then wait until it is read.
  bool heldUp(Clock::TimePoint due);
  void advanceShutdown();
  void end(const Status& outcome);
  void logProgress();
  Status readiness() const;

  Deps deps_;
  Logger log_;
  metrics::JobMetrics job_metrics_;
  metrics::EdgeMetrics edge_metrics_;
  metrics::WorkerMetrics worker_metrics_;
  EdgeMonitor edge_monitor_;
  Fleet fleet_;
  JobManager jobs_;
  Shutdown shutdown_;
  bool announced_ = false;
  bool interrupted_ = false;
  bool ended_ = false;
  Status outcome_;
  std::string last_progress_;
  Clock::TimePoint next_progress_log_;
  std::optional<EventLoop::TimerId> timer_;
  Clock::TimePoint no_timer_before_ = Clock::TimePoint::min();
  bool was_held_up_ = false;
  // Last, in this order: streams end before the processes are killed, and both tell the fleet.
  ProcessLauncher launcher_;
  WorkerService service_;
};

}  // namespace latentd::supervisor
