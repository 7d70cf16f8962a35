#include "runtime/worker/lifeline.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/shm_region.h"
#include "tests/support/catch.h"

namespace latentd::worker {
namespace {

Clock::TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

bool becomes(const std::atomic<int>& value, int expected) {
  const Clock::TimePoint deadline = soon();
  while (value != expected && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return value == expected;
}

struct Fixture {
  Fixture() {
    auto [a, b] = UnixSocket::pair().value();
    supervisor = std::move(a);
    Lifeline::Handlers handlers;
    handlers.on_supervisor_lost = [this] { ++lost; };
    handlers.on_signal = [this](int number) { signal = number; };
    lifeline = Lifeline::watch(duplicateFd(b.fd()).value(), inbox, thread.loop(), std::move(handlers)).value();
  }
  void send(const std::string& bytes, std::span<const int> fds) { REQUIRE(supervisor->send(bytes, fds).ok()); }
  static std::string idBytes(uint64_t id) { return std::string(reinterpret_cast<const char*>(&id), sizeof(id)); }

  SteadyClock clock;
  DescriptorInbox inbox;
  std::optional<UnixSocket> supervisor;
  std::atomic<int> lost = 0;
  std::atomic<int> signal = 0;
  LoopThread thread{clock, "lifeline"};
  std::unique_ptr<Lifeline> lifeline;
};

TEST_CASE("lifeline: descriptors reach the inbox under their ids, junk does not", "[worker]") {
  Fixture f;
  const ShmRegion region = ShmRegion::create("frames", 4096).value();
  const int fd = region.fd();
  const int two[] = {fd, fd};
  f.send("short", {});
  f.send(Fixture::idBytes(1), {});
  f.send(Fixture::idBytes(2), two);
  f.send(Fixture::idBytes(3), {&fd, 1});
  CHECK(f.inbox.take(3, soon()).ok());
  const Clock::TimePoint now = std::chrono::steady_clock::now();
  for (const uint64_t id : {1, 2, 3}) {
    CHECK(f.inbox.take(id, now).status().code() == absl::StatusCode::kDeadlineExceeded);
  }
  CHECK(f.lost == 0);
}

TEST_CASE("lifeline: the socket's end is told once", "[worker]") {
  Fixture f;
  f.supervisor = std::nullopt;
  CHECK(becomes(f.lost, 1));
  for (int round = 0; round < 3; ++round)
    f.thread.loop().runAndWait([] {});
  CHECK(f.lost == 1);
}

TEST_CASE("lifeline: a blocked SIGTERM arrives as a call", "[worker]") {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigset_t before;
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
  Fixture f;
  REQUIRE(::kill(::getpid(), SIGTERM) == 0);
  CHECK(becomes(f.signal, SIGTERM));
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

TEST_CASE("descriptor inbox: bounded, and a drop forgets", "[worker]") {
  const ShmRegion region = ShmRegion::create("frames", 4096).value();
  DescriptorInbox inbox;
  for (uint64_t id = 1; id <= DescriptorInbox::kHeldMax + 1; ++id)
    inbox.put(id, duplicateFd(region.fd()).value());
  inbox.drop(5);
  const Clock::TimePoint now = std::chrono::steady_clock::now();
  CHECK_FALSE(inbox.take(1, now).ok());
  CHECK_FALSE(inbox.take(5, now).ok());
  CHECK(inbox.take(2, now).ok());
  CHECK(inbox.take(DescriptorInbox::kHeldMax + 1, now).ok());
}

TEST_CASE("lifeline: a descriptor for which there is no room is told as lost instead of waited for", "[worker]") {
  Fixture f;
  const ShmRegion region = ShmRegion::create("frames", 4096).value();
  const int fd = region.fd();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlim_t lowest_free = static_cast<rlim_t>(duplicateFd(fd).value().get());
  const rlimit none{lowest_free, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  f.send(Fixture::idBytes(4), {&fd, 1});
  const Status lost = f.inbox.take(4, soon()).status();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(absl::IsResourceExhausted(lost));
  f.send(Fixture::idBytes(5), {&fd, 1});
  CHECK(f.inbox.take(5, soon()).ok());
}

TEST_CASE("descriptor inbox: what was dropped is closed when it comes, of the last ones dropped", "[worker]") {
  const ShmRegion region = ShmRegion::create("frames", 4096).value();
  DescriptorInbox inbox;
  inbox.drop(DescriptorInbox::kNone);
  for (uint64_t id = 1; id <= DescriptorInbox::kHeldMax + 1; ++id)
    inbox.drop(id);
  const Clock::TimePoint now = std::chrono::steady_clock::now();
  for (uint64_t id = 1; id <= DescriptorInbox::kHeldMax + 1; ++id) {
    inbox.put(id, duplicateFd(region.fd()).value());
    CHECK(inbox.take(id, now).ok() == (id == 1));
  }
  // Once: the id may come again.
  inbox.put(2, duplicateFd(region.fd()).value());
  CHECK(inbox.take(2, now).ok());
}

}  // namespace
}  // namespace latentd::worker
