#include "tests/support/child_test_case.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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

ChildTestCase::ChildTestCase(const std::string& name, const std::vector<int>& fds) : name_(name) {
  // A file, so that no child can block by not being read.
  report_.reset(::memfd_create("report", MFD_CLOEXEC));
  if (!report_.valid()) fail("memfd_create");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, report_.get(), 1);
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
  if (!wait(std::chrono::seconds(60))) fail("a child outlived SIGKILL");
}

void ChildTestCase::signal(int number) const {
  if (!code_) ::kill(pid_, number);
}

std::optional<int> ChildTestCase::wait(std::chrono::milliseconds deadline) {
  if (code_) return code_;
  pollfd waited{pidfd_.get(), POLLIN, 0};
  if (::poll(&waited, 1, static_cast<int>(deadline.count())) != 1) {
    if (deadline >= std::chrono::seconds(1)) showReport("did not end in time");  // a shorter wait is a look
    return std::nullopt;
  }
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) fail("waitpid");
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (*code_ != 0 && *code_ != 128 + SIGKILL) showReport("failed");
  return code_;
}

void ChildTestCase::showReport(const char* why) const {
  std::string text;
  char buffer[4096];
  for (off_t at = 0; const ssize_t got = ::pread(report_.get(), buffer, sizeof(buffer), at); at += got) {
    if (got < 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  std::fprintf(stderr, "the child \"%s\" (pid %d) %s; its report:\n%s\n", name_.c_str(), pid_, why, text.c_str());
}

}  // namespace latentd::testing
