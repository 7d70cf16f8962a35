// The child in child_process_test: does what its first argument says.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/base/child_spawner.h"

namespace {

// Longer than any test's deadline: the test ends it.
constexpr int kWaitMs = 60000;

void waitForEnd() { poll(nullptr, 0, kWaitMs); }

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int parentOfSleeper(const char* self) {
  latentd::ChildSpawner spawner({});
  latentd::ChildSpec spec;
  spec.executable = self;
  spec.arguments = {"sleep"};
  auto child = spawner.spawn(spec);
  if (!child.ok()) return 1;
  say(std::to_string(child->pid()));
  waitForEnd();
  return 0;
}

int listFds() {
  std::string numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    // The iterator's own descriptor is a directory under /proc.
    std::error_code error;
    if (std::filesystem::read_symlink(entry, error).string().starts_with("/proc")) continue;
    numbers += entry.path().filename().string() + ",";
  }
  say(numbers);
  return 0;
}

int forkAndExit() {
  const pid_t pid = fork();
  if (pid == 0) {
    waitForEnd();
    _exit(0);
  }
  say(std::to_string(pid));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "exit") return std::atoi(argv[2]);
  if (mode == "signal") return raise(std::atoi(argv[2]));
  if (mode == "sleep") return waitForEnd(), 0;
  if (mode == "parent") return parentOfSleeper(argv[0]);
  if (mode == "fds") return listFds();
  if (mode == "fork") return forkAndExit();
  if (mode == "read") {
    char byte = 0;
    if (read(std::atoi(argv[2]), &byte, 1) != 1) return 1;
    return say(std::string(1, byte)), 0;
  }
  if (mode == "group") return say(std::to_string(getpgrp() == getpid())), 0;
  if (mode == "environment") {
    const char* value = std::getenv(argv[2]);
    return say(value == nullptr ? "(unset)" : value), 0;
  }
  if (mode == "ignores-term") {
    signal(SIGTERM, SIG_IGN);
    say("ready");
    return waitForEnd(), 0;
  }
  if (mode == "term-default") {
    struct sigaction action {};
    sigaction(SIGTERM, nullptr, &action);
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, nullptr, &blocked);
    if (action.sa_handler != SIG_DFL) return say("changed"), 0;
    return say(sigismember(&blocked, SIGTERM) == 0 ? "default" : "blocked"), 0;
  }
  if (mode == "allocate") return std::calloc(std::strtoull(argv[2], nullptr, 10), 1) == nullptr ? 3 : 0;
  return 64;
}
