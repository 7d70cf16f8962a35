#include "tests/support/child_test_case.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

extern char** environ;

namespace latentd::testing {
namespace {

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

ChildTestCase::ChildTestCase(const std::string& name, const std::vector<int>& fds) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  // Through high numbers first, so that no target overwrites a source that is still needed.
  constexpr int kHigh = 500;
  std::vector<UniqueFd> moved;
  for (const int fd : fds) {
    moved.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, kHigh));
    if (!moved.back().valid()) fail("duplicating a child's descriptor");
    posix_spawn_file_actions_adddup2(&actions, moved.back().get(), 2 + static_cast<int>(moved.size()));
  }
  std::string program = "/proc/self/exe";
  std::string test_case = name;
  char* arguments[] = {program.data(), test_case.data(), nullptr};
  if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) != 0) fail("starting a child");
  posix_spawn_file_actions_destroy(&actions);
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_.valid()) fail("pidfd_open");
}

ChildTestCase::~ChildTestCase() {
  if (code_) return;
  signal(SIGKILL);
  if (!wait(std::chrono::seconds(10))) fail("a child outlived SIGKILL");
}

void ChildTestCase::signal(int number) const {
  if (!code_) ::kill(pid_, number);
}

std::optional<int> ChildTestCase::wait(std::chrono::milliseconds deadline) {
  if (code_) return code_;
  pollfd waited{pidfd_.get(), POLLIN, 0};
  if (::poll(&waited, 1, static_cast<int>(deadline.count())) != 1) return std::nullopt;
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) fail("waitpid");
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

}  // namespace latentd::testing
