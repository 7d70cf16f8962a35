#include "runtime/supervisor/job_queue.h"

#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::supervisor {
namespace {

using std::chrono::milliseconds;

TEST_CASE("job_queue: first come first served within a priority, higher priorities first", "[supervisor]") {
  const testing::ManualClock clock;
  JobQueue queue(clock, 10, milliseconds(1000));
  for (const auto& [id, priority] : {std::pair("low", -1), {"a", 0}, {"b", 0}, {"high", 5}}) {
    REQUIRE(queue.push(id, priority).ok());
  }
  CHECK(queue.position("high") == 1);
  CHECK(queue.position("a") == 2);
  CHECK(queue.position("b") == 3);
  CHECK(queue.position("low") == 4);
  CHECK(queue.position("unknown") == 0);
  CHECK(queue.pop() == "high");
  CHECK(queue.position("a") == 1);
  CHECK(queue.remove("b"));
  CHECK(!queue.remove("b"));
  CHECK(queue.pop() == "a");
  CHECK(queue.pop() == "low");
  CHECK(!queue.pop());
}

TEST_CASE("job_queue: waiting raises a job past higher priorities that come later", "[supervisor]") {
  testing::ManualClock clock;
  JobQueue queue(clock, 10, milliseconds(1000));
  REQUIRE(queue.push("patient", 0).ok());
  clock.advance(milliseconds(2999));
  REQUIRE(queue.push("early", 3).ok());
  clock.advance(milliseconds(2));
  REQUIRE(queue.push("late", 3).ok());
  CHECK(queue.pop() == "early");
  CHECK(queue.pop() == "patient");
  CHECK(queue.pop() == "late");
}

TEST_CASE("job_queue: a job comes back to its old place, even into a full queue", "[supervisor]") {
  testing::ManualClock clock;
  JobQueue queue(clock, 2, milliseconds(1000));
  const auto place = queue.push("a", 0);
  REQUIRE(place.ok());
  REQUIRE(queue.pop() == "a");
  clock.advance(milliseconds(500));
  REQUIRE(queue.push("b", 0).ok());
  REQUIRE(queue.push("urgent", 1).ok());
  queue.restore("a", *place);
  CHECK(queue.size() == 3);
  CHECK(queue.position("urgent") == 1);
  CHECK(queue.position("a") == 2);
  CHECK(queue.position("b") == 3);
  CHECK(!queue.push("c", 0).ok());
}

TEST_CASE("job_queue: a full queue refuses and says its bound", "[supervisor]") {
  const testing::ManualClock clock;
  JobQueue queue(clock, 2, milliseconds(1000));
  REQUIRE(queue.push("a", 0).ok());
  REQUIRE(queue.push("b", 0).ok());
  const Status full = queue.push("c", 100).status();
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(messageOf(full).find("2 jobs wait") != std::string::npos);
  CHECK(queue.pop() == "a");
  CHECK(queue.push("c", 0).ok());
}

}  // namespace
}  // namespace latentd::supervisor
