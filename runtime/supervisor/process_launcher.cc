#include "runtime/supervisor/process_launcher.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {
namespace {

constexpr int kLifelineFd = 3;  // the first one after the standard three
// What a pipe holds at most, so that the output of a dead worker is taken whole.
constexpr size_t kPipeBytesMax = 1 << 20;

}  // namespace

ProcessLauncher::ProcessLauncher(Options options, const config::Topology& topology, EventLoop& loop,
                                 ChildSpawner& spawner, ExitObserver& observer)
    : options_(std::move(options)), topology_(topology), loop_(loop), spawner_(spawner), observer_(observer) {}

ProcessLauncher::~ProcessLauncher() {
  // All first, one by one after: they die side by side.
  for (auto& [worker, process] : processes_)
    process.child.kill();
  for (auto& [worker, process] : processes_)
    unwatch(process);
}

ChildSpec ProcessLauncher::childSpec(WorkerId worker, Epoch epoch, int lifeline_fd) const {
  const config::GroupSpec& group = topology_.groups[worker.group.value];
  ChildSpec spec;
  spec.executable = options_.worker_binary;
  spec.arguments = {"--control",     "unix:" + options_.control_socket, "--group",     group.name,
                    "--rank",        std::to_string(worker.rank.value), "--epoch",     std::to_string(epoch.value),
                    "--lifeline-fd", std::to_string(kLifelineFd),       "--log-level", options_.log_level};
  // A thread that spins while it waits takes the cores from the other workers.
  spec.environment = {"OMP_WAIT_POLICY=PASSIVE", fmt::format("OMP_NUM_THREADS={}", group.threads),
                      fmt::format("MKL_NUM_THREADS={}", group.threads)};
  spec.inherit = {{lifeline_fd, kLifelineFd}};
  // It reads them, and one that comes before it can waits for it.
  spec.blocked_signals = {SIGINT, SIGTERM};
  spec.data_bytes_max = group.memory_bytes_max.value_or(0);
  return spec;
}

Status ProcessLauncher::launch(WorkerId worker, Epoch epoch) {
  LATENTD_CHECK(processes_.count(worker) == 0, "one process a place");
  LATENTD_ASSIGN_OR_RETURN(auto sockets, UnixSocket::pair());
  LATENTD_ASSIGN_OR_RETURN(ChildProcess child, spawner_.spawn(childSpec(worker, epoch, sockets.second.fd())));
  const std::string name = fmt::format("{}/{}", topology_.groups[worker.group.value].name, worker.rank.value);
  Process& process =
      processes_
          .emplace(worker, Process{std::move(child), std::move(sockets.first), WorkerLogs(getLogger(name)), {}, {}})
          .first->second;
  const auto watch = [&](int fd, EventLoop::Task task) {
    return loop_.watch(fd, EPOLLIN, [task = std::move(task)](uint32_t) { task(); });
  };
  StatusOr<EventLoop::Watch> exit_watch = watch(process.child.pidFd(), [this, worker] { onExit(worker); });
  if (exit_watch.ok()) process.exit_watch = *exit_watch;
  StatusOr<EventLoop::Watch> output_watch = watch(process.child.outputFd(), [this, worker] { onOutput(worker); });
  if (output_watch.ok()) process.output_watch = *output_watch;
  if (exit_watch.ok() && output_watch.ok()) return absl::OkStatus();
  unwatch(process);
  processes_.erase(worker);
  return exit_watch.ok() ? output_watch.status() : exit_watch.status();
}

void ProcessLauncher::kill(WorkerId worker) {
  const auto found = processes_.find(worker);
  if (found != processes_.end()) found->second.child.kill();
}

pid_t ProcessLauncher::pid(WorkerId worker) const {
  const auto found = processes_.find(worker);
  return found == processes_.end() ? -1 : found->second.child.pid();
}

Status ProcessLauncher::sendDescriptor(WorkerId worker, uint64_t id, int fd) {
  const auto found = processes_.find(worker);
  if (found == processes_.end()) return absl::UnavailableError("the worker is not running");
  std::array<char, sizeof(id)> bytes;
  std::memcpy(bytes.data(), &id, sizeof(id));
  LATENTD_ASSIGN_OR_RETURN(const UnixSocket::Sent sent,
                           found->second.lifeline.send({bytes.data(), bytes.size()}, {&fd, 1}));
  if (sent == UnixSocket::Sent::kYes) return absl::OkStatus();
  return absl::ResourceExhaustedError("the worker does not take descriptors");
}

bool ProcessLauncher::readOutput(Process& process, size_t bytes_max) {
  std::array<char, 8192> buffer;
  for (size_t total = 0; total < bytes_max;) {
    const ssize_t got = read(process.child.outputFd(), buffer.data(), buffer.size());
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    process.logs.append({buffer.data(), static_cast<size_t>(got)});
    total += static_cast<size_t>(got);
  }
  return true;
}

void ProcessLauncher::onOutput(WorkerId worker) {
  Process& process = processes_.at(worker);
  // The end of the pipe comes before the exit: nothing more to read, and the watch would fire for ever.
  if (!readOutput(process, kLogBytesPerTurn)) loop_.unwatch(std::exchange(process.output_watch, {}));
}

void ProcessLauncher::onExit(WorkerId worker) {
  const auto found = processes_.find(worker);
  Process& process = found->second;
  const std::optional<ExitStatus> status = process.child.tryReap();
  if (!status) return;
  readOutput(process, kPipeBytesMax);
  process.logs.finish();
  unwatch(process);
  const std::vector<std::string> last_lines(process.logs.lastLines().begin(), process.logs.lastLines().end());
  processes_.erase(found);
  observer_.onWorkerExit(worker, *status, last_lines);
}

void ProcessLauncher::unwatch(Process& process) {
  loop_.unwatch(process.exit_watch);
  loop_.unwatch(process.output_watch);
}

}  // namespace latentd::supervisor
