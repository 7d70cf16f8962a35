#include "runtime/base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <future>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{20};

}  // namespace

TEST_CASE("event loop: timers run in order of their time, by the injected clock", "[base]") {
  testing::ManualClock clock;
  EventLoop loop(clock);
  std::vector<int> order;
  loop.addTimer(clock.now() + milliseconds(20), [&] { order.push_back(2); });
  loop.addTimer(clock.now() + milliseconds(10), [&] { order.push_back(1); });
  const auto cancelled = loop.addTimer(clock.now() + milliseconds(15), [&] { order.push_back(9); });
  loop.cancelTimer(cancelled);
  loop.runOnce(milliseconds(0));
  CHECK(order.empty());
  clock.advance(milliseconds(10));
  loop.runOnce(milliseconds(0));
  CHECK(order == std::vector<int>{1});
  clock.advance(milliseconds(100));
  loop.runOnce(milliseconds(0));
  CHECK(order == std::vector<int>{1, 2});
}

TEST_CASE("event loop: a timer that is always late keeps nothing from its turn", "[base]") {
  testing::ManualClock clock;
  EventLoop loop(clock);
  int late = 0;
  std::function<void()> again = [&] {
    ++late;
    loop.addTimer(clock.now() - milliseconds(1), again);
  };
  again();
  bool posted = false;
  loop.post([&] { posted = true; });
  loop.runOnce(milliseconds(0));
  CHECK(late == 2);
  CHECK(posted);
  loop.runOnce(milliseconds(0));
  CHECK(late == 3);
}

TEST_CASE("event loop: posted tasks run on the home thread, all of them before the end", "[base]") {
  SteadyClock clock;
  std::atomic<int> ran{0};
  std::atomic<bool> at_home{true};
  std::promise<void> last;
  {
    LoopThread loop(clock, "test-loop");
    for (int i = 0; i < 100; ++i) {
      CHECK(loop.loop().post([&] {
        ++ran;
        at_home = at_home && loop.loop().onHomeThread();
      }));
    }
    loop.loop().runAndWait([&] { ++ran; });
    CHECK(ran == 101);
    CHECK_FALSE(loop.loop().onHomeThread());
    // A task that posts another one, right before the end.
    loop.loop().post([&] { loop.loop().post([&] { last.set_value(); }); });
  }
  CHECK(last.get_future().wait_for(milliseconds(0)) == std::future_status::ready);
  CHECK(at_home);
}

TEST_CASE("event loop: after the end nothing is accepted and waiting tasks run inline", "[base]") {
  SteadyClock clock;
  EventLoop loop(clock);
  loop.stop();
  loop.run();
  CHECK_FALSE(loop.post([] {}));
  bool ran = false;
  loop.runAndWait([&] { ran = true; });
  CHECK(ran);
}

TEST_CASE("event loop: watches report, can be muted and may remove themselves", "[base]") {
  SteadyClock clock;
  EventLoop loop(clock);
  const UniqueFd fd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  int calls = 0;
  EventLoop::Watch watch;
  watch = *loop.watch(fd.get(), EPOLLIN, [&](uint32_t events) {
    CHECK((events & EPOLLIN) != 0);
    if (++calls == 2) loop.unwatch(watch);
  });
  loop.runOnce(milliseconds(0));
  CHECK(calls == 1);
  loop.setEvents(watch, 0);
  loop.runOnce(milliseconds(0));
  CHECK(calls == 1);
  loop.setEvents(watch, EPOLLIN);
  loop.runOnce(milliseconds(0));
  CHECK(calls == 2);
  loop.runOnce(milliseconds(0));
  CHECK(calls == 2);
  CHECK_FALSE(loop.watch(-1, EPOLLIN, [](uint32_t) {}).ok());
}

TEST_CASE("event loop: another thread's events wake it at once", "[base]") {
  SteadyClock clock;
  LoopThread loop(clock, "test-loop");
  std::promise<void> woken;
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  EventLoop::Watch watch;
  loop.loop().runAndWait([&] {
    watch = *loop.loop().watch(fd.get(), EPOLLIN, [&](uint32_t) {
      loop.loop().unwatch(watch);
      woken.set_value();
    });
  });
  const uint64_t one = 1;
  REQUIRE(::write(fd.get(), &one, sizeof(one)) == sizeof(one));
  CHECK(woken.get_future().wait_for(kPatience) == std::future_status::ready);
}

}  // namespace latentd
