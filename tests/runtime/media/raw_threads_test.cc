#include "runtime/media/raw_threads.h"

#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <utility>

#include "tests/support/catch.h"

namespace latentd::media {
namespace {

constexpr std::chrono::seconds kPatience{20};

// The thread of a task that ends once `until` is set, if given. The kernel's number: it does not soon give it again.
pid_t threadOf(RawThreads& threads, std::shared_future<void> until = {}) {
  const auto begun = std::make_shared<std::promise<pid_t>>();
  std::future<pid_t> thread = begun->get_future();
  threads.run([begun, until = std::move(until)] {
    begun->set_value(::gettid());
    if (until.valid()) until.wait_for(kPatience);
  });
  REQUIRE(thread.wait_for(kPatience) == std::future_status::ready);
  return thread.get();
}

TEST_CASE("raw threads: none waits for another, and all are kept", "[media]") {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  RawThreads threads;
  CHECK(threadOf(threads, ended) != threadOf(threads, ended));
  end.set_value();
  // One that is about to be idle is not yet: there may be some more.
  constexpr size_t kTasks = 100;
  std::set<pid_t> seen;
  for (size_t count = 0; count < kTasks; ++count)
    seen.insert(threadOf(threads));
  CHECK(seen.size() < kTasks / 2);
}

TEST_CASE("raw threads: the end waits for what was begun", "[media]") {
  bool done = false;
  {
    RawThreads threads;
    threads.run([&] { done = true; });
  }
  CHECK(done);
}

}  // namespace
}  // namespace latentd::media
