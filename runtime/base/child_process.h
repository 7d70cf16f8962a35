#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace latentd {

// How a process ended.
struct ExitStatus {
  bool signaled = false;  // true: value is a signal number; false: an exit code
  int value = 0;

  bool success() const { return !signaled && value == 0; }
  // "exit code 3", "signal SIGKILL".
  std::string describe() const;
};

// A process that ChildSpawner started, the leader of a process group of its own. Move only.
// Owner: whoever asked for the process. Thread: one at a time.
// States: running -> exited (pidFd() is readable, a zombie) -> reaped. The pid stays valid until it is reaped, so no
// signal ever reaches a stranger.
// Failure: the destructor kills and reaps what still runs; the whole group goes with its leader.
class ChildProcess {
 public:
  ChildProcess() = default;
  ChildProcess(pid_t pid, UniqueFd pid_fd, UniqueFd output_fd);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  // False for an empty handle and after the process was reaped.
  bool running() const { return pid_fd_.valid() && !exit_status_; }
  pid_t pid() const { return pid_; }
  // Readable (epoll, poll) once the process has exited.
  int pidFd() const { return pid_fd_.get(); }
  // Read end of the pipe that is its stdout and stderr, non-blocking; -1 when not captured.
  int outputFd() const { return output_fd_.get(); }

  // To the process alone. Not an error if it has already exited.
  Status signal(int signal_number);
  // SIGKILL to the process and to all descendants that stayed in its group.
  void kill();
  // The exit status once it has exited, without waiting. Kills what is left of its group, then reaps.
  std::optional<ExitStatus> tryReap();
  // Waits for the exit. DEADLINE_EXCEEDED when it still runs after `timeout`.
  StatusOr<ExitStatus> wait(std::chrono::milliseconds timeout);

 private:
  void destroy() noexcept;

  pid_t pid_ = -1;
  UniqueFd pid_fd_;
  UniqueFd output_fd_;
  std::optional<ExitStatus> exit_status_;
};

}  // namespace latentd
