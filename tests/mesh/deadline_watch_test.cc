#include "mesh/deadline_watch.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>

#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPatience{20'000};
constexpr milliseconds kFar{60'000};

}  // namespace

TEST_CASE("deadline watch: it acts at the deadline, and once", "[mesh]") {
  DeadlineWatch watch;
  std::atomic<int> acted = 0;
  const auto deadline = steady_clock::now() + milliseconds(30);
  std::promise<steady_clock::time_point> at;
  {
    const DeadlineWatch::Armed armed(watch, deadline, [&] {
      ++acted;
      at.set_value(steady_clock::now());
    });
    auto when = at.get_future();
    REQUIRE(when.wait_for(kPatience) == std::future_status::ready);
    CHECK(when.get() >= deadline);
  }
  CHECK(acted == 1);
}

TEST_CASE("deadline watch: a nearer deadline is met though a further one came first", "[mesh]") {
  DeadlineWatch watch;
  for (int round = 0; round < 3; ++round) {
    // The thread sleeps until this one, and is not woken when it goes.
    {
      const DeadlineWatch::Armed far(watch, steady_clock::now() + kFar, [] { std::abort(); });
    }
    std::promise<void> acted;
    const DeadlineWatch::Armed near(watch, steady_clock::now() + milliseconds(5), [&] { acted.set_value(); });
    CHECK(acted.get_future().wait_for(kPatience) == std::future_status::ready);
  }
}

TEST_CASE("deadline watch: what ended in time is left alone", "[mesh]") {
  std::atomic<int> acted = 0;
  {
    DeadlineWatch watch;
    for (int i = 0; i < 1'000; ++i)
      const DeadlineWatch::Armed armed(watch, steady_clock::now() + kFar, [&] { ++acted; });
    const auto soon = steady_clock::now() + milliseconds(20);
    {
      const DeadlineWatch::Armed armed(watch, soon, [&] { ++acted; });
    }
    // Another one, whose deadline comes after that: when it acts, the former would have.
    std::promise<void> later;
    const DeadlineWatch::Armed armed(watch, soon + milliseconds(20), [&] { later.set_value(); });
    CHECK(later.get_future().wait_for(kPatience) == std::future_status::ready);
  }
  CHECK(acted == 0);
}

TEST_CASE("deadline watch: it goes at once, armed or not", "[mesh]") {
  const auto begin = steady_clock::now();
  { DeadlineWatch idle; }
  {
    DeadlineWatch watch;
    const DeadlineWatch::Armed armed(watch, begin + kFar, [] {});
  }
  CHECK(steady_clock::now() - begin < kPatience);
}

}  // namespace latentd::mesh
