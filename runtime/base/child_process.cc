#include "runtime/base/child_process.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace latentd {
namespace {

// Longest wait of a destructor for a process that got SIGKILL: only one stuck inside the kernel takes longer, and that
// one must not hold up its parent's end.
constexpr std::chrono::milliseconds kDestroyTimeout{2000};

ExitStatus toExitStatus(const siginfo_t& info) {
  return {.signaled = info.si_code != CLD_EXITED, .value = info.si_status};
}

}  // namespace

std::string ExitStatus::describe() const {
  if (!signaled) return "exit code " + std::to_string(value);
  const char* name = sigabbrev_np(value);
  return name == nullptr ? "signal " + std::to_string(value) : std::string("signal SIG") + name;
}

ChildProcess::ChildProcess(pid_t pid, UniqueFd pid_fd, UniqueFd output_fd)
    : pid_(pid), pid_fd_(std::move(pid_fd)), output_fd_(std::move(output_fd)) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pid_fd_(std::move(other.pid_fd_)),
      output_fd_(std::move(other.output_fd_)),
      exit_status_(std::exchange(other.exit_status_, std::nullopt)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  destroy();
  pid_ = std::exchange(other.pid_, -1);
  pid_fd_ = std::move(other.pid_fd_);
  output_fd_ = std::move(other.output_fd_);
  exit_status_ = std::exchange(other.exit_status_, std::nullopt);
  return *this;
}

ChildProcess::~ChildProcess() { destroy(); }

void ChildProcess::destroy() noexcept {
  if (!running()) return;
  kill();
  wait(kDestroyTimeout).IgnoreError();
}

Status ChildProcess::signal(int signal_number) {
  if (!running()) return absl::OkStatus();
  if (syscall(SYS_pidfd_send_signal, pid_fd_.get(), signal_number, nullptr, 0) == 0 || errno == ESRCH) {
    return absl::OkStatus();
  }
  return errnoStatus(errno, "signal " + std::to_string(signal_number) + " to process " + std::to_string(pid_));
}

void ChildProcess::kill() {
  // Not reaped, so neither the pid nor the group's number can belong to anyone else.
  if (running()) ::kill(-pid_, SIGKILL);
}

std::optional<ExitStatus> ChildProcess::tryReap() {
  if (!running()) return exit_status_;
  siginfo_t info{};
  const auto id = static_cast<id_t>(pid_fd_.get());
  if (waitid(P_PIDFD, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return std::nullopt;
  // While the zombie stands, its number is still the group's.
  ::kill(-pid_, SIGKILL);
  if (waitid(P_PIDFD, id, &info, WEXITED | WNOHANG) != 0) return std::nullopt;
  exit_status_ = toExitStatus(info);
  return exit_status_;
}

StatusOr<ExitStatus> ChildProcess::wait(std::chrono::milliseconds timeout) {
  if (exit_status_) return *exit_status_;
  if (!running()) return absl::FailedPreconditionError("wait for a process that was never started");
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{.fd = pid_fd_.get(), .events = POLLIN, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready > 0) {
      if (const std::optional<ExitStatus> status = tryReap()) return *status;
      return errnoStatus(errno, "reap process " + std::to_string(pid_));
    }
    if (ready < 0 && errno != EINTR) return errnoStatus(errno, "poll process " + std::to_string(pid_));
    if (left.count() <= 0) {
      return absl::DeadlineExceededError("process " + std::to_string(pid_) + " still runs after " +
                                         std::to_string(timeout.count()) + " ms");
    }
  }
}

}  // namespace latentd
