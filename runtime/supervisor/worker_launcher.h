#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/base/child_process.h"
#include "runtime/base/status.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// Told when a worker's process has ended and was reaped. Called on the supervisor's loop, never from inside a call to
// the launcher.
class ExitObserver {
 public:
  virtual ~ExitObserver() = default;
  // last_lines: what it printed last, oldest first.
  virtual void onWorkerExit(WorkerId worker, const ExitStatus& status, const std::vector<std::string>& last_lines) = 0;
};

// Starts and ends worker processes. Thread: the supervisor's loop.
class WorkerLauncher {
 public:
  virtual ~WorkerLauncher() = default;
  // Starts the process of this place; there is none. Its end is told exactly once.
  virtual Status launch(WorkerId worker, Epoch epoch) = 0;
  // SIGKILL, with all its descendants. Its end is still told.
  virtual void kill(WorkerId worker) = 0;
  // Sends the descriptor over the process's inherited socket, with `id` to name it. RESOURCE_EXHAUSTED when the worker
  // does not take what was sent before.
  virtual Status sendDescriptor(WorkerId worker, uint64_t id, int fd) = 0;
  // -1 when there is none.
  virtual pid_t pid(WorkerId worker) const = 0;
};

}  // namespace latentd::supervisor
