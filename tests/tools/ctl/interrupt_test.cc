#include "tools/ctl/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::ctl {
namespace {

// Signals of this process as the handler counted them.
struct Counted {
  Mutex mutex;
  CondVar changed;
  std::vector<int> numbers GUARDED_BY(mutex);

  void add(int number) {
    MutexLock held(mutex);
    numbers.push_back(number);
    changed.notifyAll();
  }
  std::vector<int> waitFor(size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock held(mutex);
    while (numbers.size() < count && changed.waitUntil(mutex, deadline)) {
    }
    return numbers;
  }
};

}  // namespace

TEST_CASE("latentctl: the same signal again at once is one signal, later or another is one more", "[latentctl]") {
  testing::ManualClock clock;
  Counted counted;
  Interrupt interrupt(clock);
  interrupt.setHandler([&](int number) { counted.add(number); });
  ::kill(::getpid(), SIGINT);
  CHECK(counted.waitFor(1) == std::vector<int>{SIGINT});
  clock.advance(SignalFilter::kSameSignal - std::chrono::milliseconds(1));
  ::kill(::getpid(), SIGINT);   // to the process group, as `timeout -s INT` does
  ::kill(::getpid(), SIGTERM);  // read after it: the lower number comes first
  CHECK(counted.waitFor(2) == std::vector<int>{SIGINT, SIGTERM});
  clock.advance(std::chrono::milliseconds(1));
  ::kill(::getpid(), SIGINT);
  CHECK(counted.waitFor(3) == std::vector<int>{SIGINT, SIGTERM, SIGINT});
  interrupt.setHandler(nullptr);
}

}  // namespace latentd::ctl
