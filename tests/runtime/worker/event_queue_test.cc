#include "runtime/worker/event_queue.h"

#include <string>
#include <thread>

#include "runtime/base/message_batch.h"
#include "tests/support/catch.h"

namespace latentd::worker {
namespace {

using internal::v1::WorkerEvent;
using internal::v1::WorkerEvents;

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
  const WorkerEvents batch = queue.pop(now());
  REQUIRE(batch.events_size() == 4);
  CHECK(batch.events(0).started().job_id() == "a");
  CHECK(batch.events(1).progress().step() == 2);
  CHECK(batch.events(1).epoch() == 7);
  CHECK(batch.events(2).progress().job_id() == "b");
  CHECK(batch.events(2).progress().step() == 2);
  CHECK(batch.events(3).heartbeat().resident_bytes() == 2);
  CHECK(queue.pop(now()).events().empty());
}

TEST_CASE("event queue: figures leave in the order in which they were counted, whatever supersedes", "[worker]") {
  EventQueue queue(Epoch(1), [] { FAIL("overflow"); });
  uint32_t counted = 0;
  const auto post = [&](WorkerEvent event) {
    event.add_edges()->set_slots_in_use(++counted);
    queue.post(std::move(event));
  };
  const auto done = [](const std::string& job) {
    WorkerEvent event;
    event.mutable_done()->set_job_id(job);
    return event;
  };
  post(heartbeat(1));
  post(done("a"));
  post(heartbeat(2));
  post(done("b"));
  post(heartbeat(3));
  const WorkerEvents batch = queue.pop(now());
  REQUIRE(batch.events_size() == 3);
  CHECK(batch.events(0).edges(0).slots_in_use() == 2);
  CHECK(batch.events(1).edges(0).slots_in_use() == 4);
  CHECK(batch.events(2).edges(0).slots_in_use() == 5);
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
  CHECK(queue.pop(now()).events_size() == 1);
  CHECK(queue.ended());
}

TEST_CASE("event queue: a batch is bounded in number and in bytes, and nothing is lost between two", "[worker]") {
  EventQueue queue(Epoch(1), [] { FAIL("overflow"); });
  for (int n = 0; n < kBatchMessagesMax + 1; ++n)
    queue.post(started(std::to_string(n)));
  const WorkerEvents first = queue.pop(now());
  REQUIRE(first.events_size() == kBatchMessagesMax);
  CHECK(first.events(kBatchMessagesMax - 1).started().job_id() == std::to_string(kBatchMessagesMax - 1));
  const WorkerEvents second = queue.pop(now());
  REQUIRE(second.events_size() == 1);
  CHECK(second.events(0).started().job_id() == std::to_string(kBatchMessagesMax));

  // One of more than the bound goes alone; the one that reaches it is the last.
  queue.post(started(std::string(kBatchBytesMax + 1, 'x')));
  queue.post(started(std::string(kBatchBytesMax / 2, 'y')));
  queue.post(started(std::string(kBatchBytesMax / 2, 'y')));
  queue.post(started("z"));
  CHECK(queue.pop(now()).events_size() == 1);
  CHECK(queue.pop(now()).events_size() == 2);
  CHECK(queue.pop(now()).events(0).started().job_id() == "z");
}

TEST_CASE("event queue: a waiting pop wakes for an event", "[worker]") {
  EventQueue queue(Epoch(1), [] {});
  std::thread posting([&] { queue.post(started("a")); });
  CHECK(queue.pop(now() + std::chrono::seconds(20)).events_size() == 1);
  posting.join();
}

}  // namespace
}  // namespace latentd::worker
