#include "runtime/base/child_spawner.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace latentd {
namespace {

// How long one sleep of the spawner thread may last: nothing depends on it, a request wakes the thread.
constexpr std::chrono::seconds kIdleWait{3600};
// CLOSE_RANGE_CLOEXEC, absent from older headers.
constexpr unsigned kCloseRangeCloexec = 1U << 2;
// Descriptors marked one by one where the kernel has no close_range: more than any of our processes opens.
constexpr int kMarkedFdsMax = 65536;

// Everything that the child touches between fork and exec, made before the fork: nothing there may allocate.
struct Image {
  std::vector<std::string> strings;  // keeps argv and envp alive
  std::vector<char*> argv;
  std::vector<char*> envp;
  std::vector<ChildSpec::InheritedFd> fds;
  int first_free_fd = 3;  // above every target number
  int marked_fds = 0;
  pid_t parent = 0;
  sigset_t blocked;
  uint64_t data_bytes_max = 0;
};

std::string_view nameOf(std::string_view assignment) { return assignment.substr(0, assignment.find('=')); }

std::vector<std::string> mergeEnvironment(const std::vector<std::string>& base, const std::vector<std::string>& over) {
  std::vector<std::string> merged = over;
  for (const std::string& entry : base) {
    const bool replaced =
        std::any_of(over.begin(), over.end(), [&](const std::string& other) { return nameOf(other) == nameOf(entry); });
    if (!replaced) merged.push_back(entry);
  }
  return merged;
}

Image makeImage(const ChildSpec& spec, const std::vector<std::string>& base_environment, int null_fd, int output_fd) {
  Image image;
  image.parent = getpid();
  image.data_bytes_max = spec.data_bytes_max;
  sigemptyset(&image.blocked);
  for (const int signal_number : spec.blocked_signals)
    sigaddset(&image.blocked, signal_number);
  image.fds.push_back({null_fd, STDIN_FILENO});
  if (output_fd >= 0) {
    image.fds.push_back({output_fd, STDOUT_FILENO});
    image.fds.push_back({output_fd, STDERR_FILENO});
  } else {
    image.fds.push_back({STDOUT_FILENO, STDOUT_FILENO});
    image.fds.push_back({STDERR_FILENO, STDERR_FILENO});
  }
  for (const ChildSpec::InheritedFd& inherited : spec.inherit) {
    std::erase_if(image.fds, [&](const auto& earlier) { return earlier.as == inherited.as; });
    image.fds.push_back(inherited);
    image.first_free_fd = std::max(image.first_free_fd, inherited.as + 1);
  }
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  image.marked_fds = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, kMarkedFdsMax));

  const std::vector<std::string> environment = mergeEnvironment(base_environment, spec.environment);
  image.strings.reserve(1 + spec.arguments.size() + environment.size());
  const auto keep = [&](const std::string& text) { return image.strings.emplace_back(text).data(); };
  image.argv.push_back(keep(spec.executable));
  for (const std::string& argument : spec.arguments)
    image.argv.push_back(keep(argument));
  image.argv.push_back(nullptr);
  for (const std::string& entry : environment)
    image.envp.push_back(keep(entry));
  image.envp.push_back(nullptr);
  return image;
}

// ---- in the child: async-signal-safe calls only ---------------------------------------------------------------

[[noreturn]] void failChild(int error_fd) {
  const int error = errno;
  (void)!write(error_fd, &error, sizeof(error));
  _exit(127);
}

void resetSignals(const sigset_t& blocked) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number)
    sigaction(number, &action, nullptr);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

void closeAllOnExec(int marked_fds) {
  if (syscall(SYS_close_range, 3U, ~0U, kCloseRangeCloexec) == 0) return;
  for (int fd = 3; fd < marked_fds; ++fd)
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

[[noreturn]] void runChild(Image& image, int error_fd) {
  // The error pipe first, then every source, away from the target numbers: a target may be another's source.
  error_fd = fcntl(error_fd, F_DUPFD_CLOEXEC, image.first_free_fd);
  if (error_fd < 0) _exit(127);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) failChild(error_fd);
  if (getppid() != image.parent) _exit(127);
  if (setpgid(0, 0) != 0) failChild(error_fd);
  resetSignals(image.blocked);
  for (ChildSpec::InheritedFd& entry : image.fds) {
    entry.fd = fcntl(entry.fd, F_DUPFD_CLOEXEC, image.first_free_fd);
    if (entry.fd < 0) failChild(error_fd);
  }
  for (const ChildSpec::InheritedFd& entry : image.fds) {
    if (dup2(entry.fd, entry.as) < 0) failChild(error_fd);
  }
  closeAllOnExec(image.marked_fds);
  for (const ChildSpec::InheritedFd& entry : image.fds)
    fcntl(entry.as, F_SETFD, 0);
  if (image.data_bytes_max != 0) {
    const rlimit limit{.rlim_cur = image.data_bytes_max, .rlim_max = image.data_bytes_max};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) failChild(error_fd);
  }
  execve(image.argv[0], image.argv.data(), image.envp.data());
  failChild(error_fd);
}

// ---- in the parent --------------------------------------------------------------------------------------------

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

StatusOr<Pipe> makePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errnoStatus(errno, "pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Returns when the child has exec'd (the pipe closes) or reported why it cannot.
Status awaitExec(int error_fd, const ChildSpec& spec) {
  const auto deadline = std::chrono::steady_clock::now() + spec.exec_timeout;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{.fd = error_fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return errnoStatus(errno, "poll for the start of " + spec.executable);
    if (ready == 0) return absl::DeadlineExceededError(spec.executable + " did not start in time");
    int error = 0;
    const ssize_t got = read(error_fd, &error, sizeof(error));
    if (got == sizeof(error)) return errnoStatus(error, "start " + spec.executable);
    return absl::OkStatus();
  }
}

StatusOr<ChildProcess> spawnHere(const ChildSpec& spec, const std::vector<std::string>& base_environment) {
  const UniqueFd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_fd.valid()) return errnoStatus(errno, "open /dev/null");
  LATENTD_ASSIGN_OR_RETURN(Pipe error_pipe, makePipe());
  Pipe output_pipe;
  if (spec.capture_output) {
    LATENTD_ASSIGN_OR_RETURN(output_pipe, makePipe());
    if (fcntl(output_pipe.read_end.get(), F_SETFL, O_NONBLOCK) != 0) return errnoStatus(errno, "fcntl");
  }
  Image image = makeImage(spec, base_environment, null_fd.get(), output_pipe.write_end.get());

  // No handler of ours may run in the child before it has reset them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) runChild(image, error_pipe.write_end.get());
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return errnoStatus(fork_error, "fork for " + spec.executable);

  error_pipe.write_end.reset();
  output_pipe.write_end.reset();
  // Only this process can reap the child, so its number cannot have been reused.
  UniqueFd pid_fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const int pidfd_error = errno;
  ChildProcess child(pid, std::move(pid_fd), std::move(output_pipe.read_end));
  if (child.pidFd() < 0) {
    ::kill(pid, SIGKILL);
    return errnoStatus(pidfd_error, "pidfd_open (Linux 5.3 or newer is needed)");
  }
  LATENTD_RETURN_IF_ERROR(awaitExec(error_pipe.read_end.get(), spec));
  return child;
}

}  // namespace

ChildSpawner::ChildSpawner(std::vector<std::string> base_environment)
    : base_environment_(std::move(base_environment)), thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "spawner");
}

ChildSpawner::~ChildSpawner() {
  {
    const MutexLock held(mutex_);
    stopping_ = true;
  }
  changed_.notifyAll();
  thread_.join();
}

StatusOr<ChildProcess> ChildSpawner::spawn(const ChildSpec& spec) {
  Request request{.spec = &spec, .result = std::nullopt};
  const MutexLock held(mutex_);
  requests_.push_back(&request);
  changed_.notifyAll();
  // The spawner's own waits are bounded by exec_timeout, so this one is, however it is sliced.
  while (!request.result)
    changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + spec.exec_timeout);
  return std::move(*request.result);
}

void ChildSpawner::run() {
  while (true) {
    Request* request = nullptr;
    {
      const MutexLock held(mutex_);
      while (requests_.empty() && !stopping_)
        changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kIdleWait);
      if (requests_.empty()) return;
      request = requests_.front();
      requests_.pop_front();
    }
    StatusOr<ChildProcess> result = spawnHere(*request->spec, base_environment_);
    {
      const MutexLock held(mutex_);
      request->result = std::move(result);
    }
    changed_.notifyAll();
  }
}

}  // namespace latentd
