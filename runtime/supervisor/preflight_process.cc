#include "runtime/supervisor/preflight_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <optional>

#include "runtime/base/unique_fd.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

using Deadline = std::chrono::steady_clock::time_point;

// The first ones after the standard three.
constexpr int kRequestFd = 3;
constexpr int kResultFd = 4;
// Of what it printed, the end is told: a loader's or a library's complaint fits.
constexpr size_t kOutputBytesKept = 2048;

StatusOr<UniqueFd> memoryFile(const char* name) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file.valid()) return errnoStatus(errno, "create a file in memory");
  return file;
}

// Takes what the pipe holds; false at its end.
bool takeOutput(int fd, std::string& output) {
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    output.append(buffer.data(), static_cast<size_t>(got));
    if (output.size() > kOutputBytesKept) output.erase(0, output.size() - kOutputBytesKept);
  }
}

// DEADLINE_EXCEEDED or CANCELLED while it still runs. Reads along, so that a full pipe stops nobody.
StatusOr<ExitStatus> waitForExit(ChildProcess& child, std::string& output, Deadline deadline, int interrupt_fd) {
  bool open = true;
  while (true) {
    if (open) open = takeOutput(child.outputFd(), output);
    if (const std::optional<ExitStatus> status = child.tryReap()) {
      if (open) takeOutput(child.outputFd(), output);
      return *status;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return absl::DeadlineExceededError("no answer");
    // poll() passes over a descriptor of -1.
    pollfd waited[]{{child.pidFd(), POLLIN, 0}, {open ? child.outputFd() : -1, POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
    ::poll(waited, std::size(waited), static_cast<int>(left.count()));
    if (waited[2].revents != 0) return absl::CancelledError("interrupted while the topology was checked");
  }
}

std::string printed(std::string output) {
  while (!output.empty() && output.back() == '\n')
    output.pop_back();
  return output.empty() ? "" : "; it printed:\n" + output;
}

}  // namespace

StatusOr<wire::PreflightResult> runPreflight(ChildSpawner& spawner, const std::string& worker_binary,
                                             const wire::PreflightRequest& request, std::chrono::milliseconds timeout,
                                             int interrupt_fd) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  LATENTD_ASSIGN_OR_RETURN(const UniqueFd question, memoryFile("latentd-preflight-request"));
  LATENTD_ASSIGN_OR_RETURN(const UniqueFd answer, memoryFile("latentd-preflight-result"));
  if (!request.SerializeToFileDescriptor(question.get()) || ::lseek(question.get(), 0, SEEK_SET) != 0) {
    return errnoStatus(errno, "write the topology for " + worker_binary);
  }
  ChildSpec spec;
  spec.executable = worker_binary;
  spec.arguments = {"--preflight", std::to_string(kRequestFd), std::to_string(kResultFd)};
  spec.environment = {"OMP_WAIT_POLICY=PASSIVE", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"};
  spec.inherit = {{question.get(), kRequestFd}, {answer.get(), kResultFd}};
  spec.blocked_signals = {SIGINT, SIGTERM};  // the daemon's to hear
  LATENTD_ASSIGN_OR_RETURN(ChildProcess child, spawner.spawn(spec));
  std::string output;
  const StatusOr<ExitStatus> exit = waitForExit(child, output, deadline, interrupt_fd);
  const std::string what = "checking the topology with " + worker_binary;
  if (absl::IsCancelled(exit.status())) return exit.status();
  if (!exit.ok()) {
    return absl::DeadlineExceededError(fmt::format("{}: no answer within {:g} s (deadlines.load){}", what,
                                                   std::chrono::duration<double>(timeout).count(), printed(output)));
  }
  if (!exit->success()) return absl::UnavailableError(what + ": " + exit->describe() + printed(output));
  wire::PreflightResult result;
  if (::lseek(answer.get(), 0, SEEK_SET) != 0 || !result.ParseFromFileDescriptor(answer.get()) ||
      result.groups_size() != request.groups_size()) {
    return absl::InternalError(what + ": no answer; is it the latent-worker of this version?" + printed(output));
  }
  return result;
}

}  // namespace latentd::supervisor
