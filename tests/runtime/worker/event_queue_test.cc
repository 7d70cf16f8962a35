#include "runtime/worker/event_queue.h"

#include <string>
#include <thread>

#include "tests/support/catch.h"

namespace latentd::worker {
namespace {

using internal::v1::WorkerEvent;

Clock::TimePoint now() { return std::chrono::steady_clock::now(); }

WorkerEvent progress(const std::string& job, uint32_t step) {
  WorkerEvent event;
  event.mutable_progress()->set_job_id(job);
  event.mutable_progress()->set_step(step);
  return event;
}

WorkerEvent heartbeat(uint64_t bytes) {
  WorkerEvent event;
  event.mutable_heartbeat()->set_resident_bytes(bytes);
  return event;
}

WorkerEvent started(const std::string& job) {
  WorkerEvent event;
  event.mutable_started()->set_job_id(job);
  return event;
}

TEST_CASE("event queue: order stays, the epoch is set, what is superseded goes", "[worker]") {
  EventQueue queue(Epoch(7), [] { FAIL("overflow"); });
  queue.post(heartbeat(1));
  queue.post(started("a"));
  queue.post(progress("a", 1));
  queue.post(progress("a", 2));
  queue.post(progress("b", 1));
  queue.post(heartbeat(2));
  queue.post(progress("b", 2));
  REQUIRE(queue.size() == 4);
  CHECK(queue.pop(now())->heartbeat().resident_bytes() == 2);
  CHECK(queue.pop(now())->started().job_id() == "a");
  const auto latest = queue.pop(now());
  CHECK(latest->progress().step() == 2);
  CHECK(latest->epoch() == 7);
  CHECK(queue.pop(now())->progress().step() == 2);
  CHECK_FALSE(queue.pop(now()).has_value());
}

TEST_CASE("event queue: a stopped supervisor costs bounded memory and no wait", "[worker]") {
  int overflows = 0;
  EventQueue queue(Epoch(1), [&] { ++overflows; });
  for (int n = 0; n < 1'000'000; ++n)
    queue.post(n % 2 == 0 ? heartbeat(n) : progress("a", n));
  CHECK(queue.size() == 2);
  while (overflows == 0)
    queue.post(started("a"));
  CHECK(queue.size() == EventQueue::kEventsMax);
}

TEST_CASE("event queue: close lets out what it holds and takes no more", "[worker]") {
  EventQueue queue(Epoch(1), [] {});
  queue.post(started("a"));
  queue.close();
  queue.post(started("b"));
  CHECK_FALSE(queue.ended());
  CHECK(queue.pop(now()).has_value());
  CHECK(queue.ended());
}

TEST_CASE("event queue: a waiting pop wakes for an event", "[worker]") {
  EventQueue queue(Epoch(1), [] {});
  std::thread posting([&] { queue.post(started("a")); });
  CHECK(queue.pop(now() + std::chrono::seconds(20)).has_value());
  posting.join();
}

}  // namespace
}  // namespace latentd::worker
