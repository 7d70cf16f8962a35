#include "tests/support/running_program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/base/check.h"

namespace latentd::testing {
namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe makePipe() {
  int ends[2];
  LATENTD_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe2");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Pipe makeTerminal() {
  int controller = -1, terminal = -1;
  winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  LATENTD_CHECK(openpty(&controller, &terminal, nullptr, nullptr, &size) == 0, "openpty");
  fcntl(controller, F_SETFD, FD_CLOEXEC);
  fcntl(terminal, F_SETFD, FD_CLOEXEC);
  return {UniqueFd(controller), UniqueFd(terminal)};
}

// A file, so that no program can block us by not reading.
UniqueFd inputOf(const std::string& text) {
  UniqueFd file(memfd_create("input", MFD_CLOEXEC));
  LATENTD_CHECK(file.valid() && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                    lseek(file.get(), 0, SEEK_SET) == 0,
                "input");
  return file;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> made;
  for (std::string& text : texts)
    made.push_back(text.data());
  made.push_back(nullptr);
  return made;
}

pid_t spawn(std::vector<std::string>& command, const RunningProgram::Options& options, int in, int out, int err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_adddup2(&actions, err, 2);
  if (!options.directory.empty()) posix_spawn_file_actions_addchdir_np(&actions, options.directory.c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<std::string> environment = options.environment;
  // And how the test is sanitized, so is what it starts.
  for (const char* name : {"PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    if (const char* value = getenv(name)) environment.push_back(std::string(name) + "=" + value);
  }
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command[0].c_str(), &actions, &attributes, pointers(command).data(),
                                 pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  LATENTD_CHECK(error == 0, command[0]);
  return pid;
}

}  // namespace

RunningProgram::RunningProgram(std::vector<std::string> command, Options options) : name_(command[0]) {
  const UniqueFd input = inputOf(options.input);
  Pipe output = makePipe();
  Pipe error = options.terminal ? makeTerminal() : makePipe();
  pid_ = spawn(command, options, input.get(), output.write.get(), error.write.get());
  pid_fd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  LATENTD_CHECK(pid_fd_.valid(), "pidfd_open");
  if (options.closed_output) output.read.reset();
  output_fd_ = std::move(output.read);
  error_fd_ = std::move(error.read);
  if (output_fd_.valid()) readers_.emplace_back([this] { collect(output_fd_.get(), &output_); });
  readers_.emplace_back([this] { collect(error_fd_.get(), &error_); });
}

RunningProgram::~RunningProgram() {
  if (!code_) {
    kill(pid_, SIGKILL);
    wait();
  }
  for (std::thread& reader : readers_) {
    if (reader.joinable()) reader.join();
  }
}

void RunningProgram::collect(int fd, std::string* text) {
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;  // a terminal whose other side is closed reads EIO
    MutexLock held(mutex_);
    text->append(buffer.data(), static_cast<size_t>(got));
    grown_.notifyAll();
  }
}

bool RunningProgram::waitForText(const std::string& text, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock held(mutex_);
  while (output_.find(text) == std::string::npos && error_.find(text) == std::string::npos) {
    if (grown_.waitUntil(mutex_, deadline)) continue;
    showSaid('"' + text + '"');
    return false;
  }
  return true;
}

void RunningProgram::signal(int number) const {
  if (!code_) kill(pid_, number);
}

std::optional<int> RunningProgram::wait(std::chrono::milliseconds timeout) {
  if (code_) return code_;
  pollfd exited{pid_fd_.get(), POLLIN, 0};
  if (poll(&exited, 1, static_cast<int>(timeout.count())) != 1) {
    MutexLock held(mutex_);
    if (timeout >= std::chrono::seconds(1)) showSaid("its end");  // a shorter wait is a look
    return std::nullopt;
  }
  int status = 0;
  LATENTD_CHECK(waitpid(pid_, &status, 0) == pid_, "waitpid");
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  for (std::thread& reader : readers_)
    reader.join();
  return code_;
}

void RunningProgram::showSaid(const std::string& awaited) {
  std::fprintf(stderr, "%s (pid %d): %s did not come in time. Its output:\n%s\nIts error output:\n%s\n", name_.c_str(),
               pid_, awaited.c_str(), output_.c_str(), error_.c_str());
}

std::string RunningProgram::output() {
  MutexLock held(mutex_);
  return output_;
}

std::string RunningProgram::error() {
  MutexLock held(mutex_);
  return error_;
}

}  // namespace latentd::testing
