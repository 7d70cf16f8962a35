#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/base/child_spawner.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/unix_socket.h"
#include "runtime/config/topology.h"
#include "runtime/supervisor/worker_launcher.h"
#include "runtime/supervisor/worker_logs.h"

namespace latentd::supervisor {

// Starts latent-worker processes and watches them: their exit through a pidfd, their output through a pipe. Each gets
// an inherited socket whose end tells it that we are gone, and over which descriptors travel.
// Owner: Supervisor; loop and spawner outlive it. Thread: the supervisor's loop.
// Failure: destroying it kills and reaps what still runs.
class ProcessLauncher final : public WorkerLauncher {
 public:
  struct Options {
    std::string worker_binary;
    std::string control_socket;
    std::string log_level;
  };
  ProcessLauncher(Options options, const config::Topology& topology, EventLoop& loop, ChildSpawner& spawner,
                  ExitObserver& observer);
  ~ProcessLauncher() override;

  Status launch(WorkerId worker, Epoch epoch) override;
  void kill(WorkerId worker) override;
  Status sendDescriptor(WorkerId worker, uint64_t id, int fd) override;
  pid_t pid(WorkerId worker) const override;

 private:
  struct Process {
    ChildProcess child;
    UnixSocket lifeline;
    WorkerLogs logs;
    EventLoop::Watch exit_watch;
    EventLoop::Watch output_watch;
  };

  ChildSpec childSpec(WorkerId worker, Epoch epoch, int lifeline_fd) const;
  // False at the end of the pipe.
  bool readOutput(Process& process, size_t bytes_max);
  void onOutput(WorkerId worker);
  void onExit(WorkerId worker);
  void unwatch(Process& process);

  const Options options_;
  const config::Topology& topology_;
  EventLoop& loop_;
  ChildSpawner& spawner_;
  ExitObserver& observer_;
  std::map<WorkerId, Process> processes_;
};

}  // namespace latentd::supervisor
