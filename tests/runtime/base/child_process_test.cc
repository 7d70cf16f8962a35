#include "runtime/base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>

#include "runtime/base/child_spawner.h"
#include "tests/support/catch.h"
#include "tests/support/self_path.h"

namespace latentd {
namespace {

using std::chrono::milliseconds;

// Nothing here takes this long unless it hangs.
constexpr milliseconds kPatience{20'000};

ChildSpec helper(std::vector<std::string> arguments) {
  ChildSpec spec;
  spec.executable = testing::siblingBinary("child_helper");
  spec.arguments = std::move(arguments);
  return spec;
}

// All output until the pipe's end or a newline; "" when nothing comes in time.
std::string readLine(int fd) {
  std::string line;
  while (line.empty() || line.back() != '\n') {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&entry, 1, static_cast<int>(kPatience.count())) <= 0) return "";
    char byte = 0;
    if (read(fd, &byte, 1) != 1) return line;
    line.push_back(byte);
  }
  line.pop_back();
  return line;
}

bool exitsInTime(int pid_fd, milliseconds timeout) {
  pollfd entry{.fd = pid_fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, static_cast<int>(timeout.count())) == 1;
}

size_t openFds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

ExitStatus runToEnd(ChildSpawner& spawner, const ChildSpec& spec) {
  auto child = spawner.spawn(spec);
  REQUIRE(child.ok());
  auto status = child->wait(kPatience);
  REQUIRE(status.ok());
  return *status;
}

TEST_CASE("child_process: exit codes and signals are told apart", "[base]") {
  ChildSpawner spawner({});
  CHECK(runToEnd(spawner, helper({"exit", "0"})).success());
  const ExitStatus three = runToEnd(spawner, helper({"exit", "3"}));
  CHECK(three.describe() == "exit code 3");
  const ExitStatus aborted = runToEnd(spawner, helper({"signal", std::to_string(SIGSEGV)}));
  CHECK(aborted.signaled);
  CHECK(aborted.describe() == "signal SIGSEGV");
}

TEST_CASE("child_process: an executable that cannot start is named, and nothing is left", "[base]") {
  ChildSpawner spawner({});
  const size_t before = openFds();
  ChildSpec missing;
  missing.executable = "/nonexistent/latent-worker";
  const Status absent = spawner.spawn(missing).status();
  CHECK(absent.code() == absl::StatusCode::kNotFound);
  CHECK(messageOf(absent).find("/nonexistent/latent-worker") != std::string::npos);
  ChildSpec folder;
  folder.executable = "/proc";
  CHECK(spawner.spawn(folder).status().code() == absl::StatusCode::kPermissionDenied);
  CHECK(openFds() == before);
}

TEST_CASE("child_process: SIGKILL of the parent takes its children along", "[base]") {
  ChildSpawner spawner({});
  auto parent = spawner.spawn(helper({"parent"}));
  REQUIRE(parent.ok());
  const std::string line = readLine(parent->outputFd());
  REQUIRE(!line.empty());
  const UniqueFd grandchild(static_cast<int>(syscall(SYS_pidfd_open, std::stoi(line), 0)));
  REQUIRE(grandchild.valid());
  CHECK(!exitsInTime(grandchild.get(), milliseconds(0)));
  REQUIRE(parent->signal(SIGKILL).ok());
  CHECK(exitsInTime(grandchild.get(), kPatience));
}

TEST_CASE("child_process: a destroyed handle kills and reaps, descendants in the group too", "[base]") {
  ChildSpawner spawner({});
  pid_t pid = 0;
  {
    auto child = spawner.spawn(helper({"ignores-term"}));
    REQUIRE(child.ok());
    REQUIRE(readLine(child->outputFd()) == "ready");
    REQUIRE(child->signal(SIGTERM).ok());
    pid = child->pid();
  }
  CHECK((kill(pid, 0) == -1 && errno == ESRCH));

  auto forker = spawner.spawn(helper({"fork"}));
  REQUIRE(forker.ok());
  const std::string line = readLine(forker->outputFd());
  REQUIRE(!line.empty());
  const UniqueFd descendant(static_cast<int>(syscall(SYS_pidfd_open, std::stoi(line), 0)));
  REQUIRE(descendant.valid());
  REQUIRE(forker->wait(kPatience).ok());
  CHECK(exitsInTime(descendant.get(), kPatience));
}

TEST_CASE("child_process: only the listed descriptors reach the child", "[base]") {
  ChildSpawner spawner({});
  // Deliberately without close-on-exec: a library's descriptor.
  const UniqueFd stray(open("/dev/zero", O_RDONLY));
  REQUIRE(stray.valid());
  auto child = spawner.spawn(helper({"fds"}));
  REQUIRE(child.ok());
  std::string numbers = readLine(child->outputFd());
  CHECK(numbers.size() == 6);
  for (const char* number : {"0,", "1,", "2,"})
    CHECK(numbers.find(number) != std::string::npos);
}

TEST_CASE("child_process: inherited descriptors get the numbers asked for, even when they swap", "[base]") {
  ChildSpawner spawner({});
  std::array<int, 2> first{};
  std::array<int, 2> second{};
  REQUIRE(pipe2(first.data(), O_CLOEXEC) == 0);
  REQUIRE(pipe2(second.data(), O_CLOEXEC) == 0);
  const UniqueFd a(first[0]), a_write(first[1]), b(second[0]), b_write(second[1]);
  REQUIRE(write(a_write.get(), "a", 1) == 1);
  REQUIRE(write(b_write.get(), "b", 1) == 1);
  ChildSpec spec = helper({"read", std::to_string(a.get())});
  spec.inherit = {{a.get(), b.get()}, {b.get(), a.get()}};
  auto child = spawner.spawn(spec);
  REQUIRE(child.ok());
  CHECK(readLine(child->outputFd()) == "b");
}

TEST_CASE("child_process: own process group, default signals, environment over the base", "[base]") {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  ChildSpawner spawner({"FIRST=base", "SECOND=base"});
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const auto output = [&](ChildSpec spec) {
    auto child = spawner.spawn(spec);
    REQUIRE(child.ok());
    return readLine(child->outputFd());
  };
  CHECK(output(helper({"group"})) == "1");
  CHECK(output(helper({"term-default"})) == "default");
  ChildSpec blocking = helper({"term-default"});
  blocking.blocked_signals = {SIGINT, SIGTERM};
  CHECK(output(blocking) == "blocked");
  ChildSpec overridden = helper({"environment", "SECOND"});
  overridden.environment = {"SECOND=own"};
  CHECK(output(overridden) == "own");
  CHECK(output(helper({"environment", "FIRST"})) == "base");
  CHECK(output(helper({"environment", "HOME"})) == "(unset)");
}

TEST_CASE("child_process: memory beyond the limit fails to allocate", "[base]") {
  ChildSpawner spawner({});
  const std::string bytes = std::to_string(256 << 20);
  ChildSpec limited = helper({"allocate", bytes});
  limited.data_bytes_max = 64 << 20;
  CHECK(runToEnd(spawner, limited).describe() == "exit code 3");
  CHECK(runToEnd(spawner, helper({"allocate", bytes})).success());
}

TEST_CASE("child_process: waiting has a deadline, and a process that still runs stays usable", "[base]") {
  ChildSpawner spawner({});
  auto child = spawner.spawn(helper({"sleep"}));
  REQUIRE(child.ok());
  CHECK(child->wait(milliseconds(1)).status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(!child->tryReap());
  child->kill();
  auto status = child->wait(kPatience);
  REQUIRE(status.ok());
  CHECK(status->describe() == "signal SIGKILL");
  CHECK(child->signal(SIGTERM).ok());
  CHECK(!child->running());
}

TEST_CASE("child_process: many threads spawn at once; no descriptor or zombie is left", "[base]") {
  ChildSpawner spawner({});
  const size_t before = openFds();
  constexpr int kThreads = 4;
  constexpr int kChildrenPerThread = 20;
  std::array<int, kThreads> successes{};
  std::vector<std::thread> threads;
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back([&, index] {
      for (int child_index = 0; child_index < kChildrenPerThread; ++child_index) {
        auto child = spawner.spawn(helper({"exit", "0"}));
        if (!child.ok()) continue;
        const auto status = child->wait(kPatience);
        if (status.ok() && status->success()) ++successes[index];
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const int count : successes)
    CHECK(count == kChildrenPerThread);
  CHECK(openFds() == before);
  CHECK((waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD));
}

}  // namespace
}  // namespace latentd
