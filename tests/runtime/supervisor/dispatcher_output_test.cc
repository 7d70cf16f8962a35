// What becomes of a job whose output fails.
#include "tests/runtime/supervisor/dispatcher_fixture.h"

namespace latentd::supervisor {
namespace {

constexpr std::chrono::milliseconds kPatience{10000};

// The tests make the outputs.
struct Fixture : DispatcherFixture {
  Fixture() { makes_outputs = false; }
};

TEST_CASE("dispatcher: an output that cannot open fails its job, and the next one runs", "[supervisor]") {
  Fixture fixture;
  fixture.host.outputs.open_status = absl::ResourceExhaustedError("spool full");
  fixture.submit("a");
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kResourceExhausted);
  CHECK(fixture.sent() == "1:run a 0:run a 0:cancel a 1:cancel a 2:discard 0");
  fixture.host.outputs.open_status = absl::OkStatus();
  fixture.failed(0, "a", absl::StatusCode::kCancelled);
  fixture.failed(1, "a", absl::StatusCode::kCancelled);
  fixture.sink.take();
  CHECK(fixture.dispatcher.running() == 1);  // its last promise is being discarded
}

TEST_CASE("dispatcher: a ring that cannot be made or handed over is its job's failure at once", "[supervisor]") {
  Fixture fixture;
  fixture.host.stall_timeout = kPatience;
  fixture.submit("a");
  fixture.sink.take();
  Status expected;
  SECTION("made: no consequence of anything else, whatever its code") {
    expected = GENERATE(absl::UnavailableError("the encoder cannot run here"), absl::ResourceExhaustedError("full"));
    fixture.dispatcher.onOutputOpened("a", expected);
  }
  SECTION("handed over") {
    expected = absl::ResourceExhaustedError("the worker does not take descriptors");
    fixture.sink.descriptor_status = expected;
    fixture.dispatcher.onOutputOpened("a", absl::OkStatus());
  }
  SECTION("made in time") {
    fixture.clock.advance(kPatience / 2);
    CHECK(fixture.dispatcher.nextDeadline() == fixture.clock.now());
    fixture.dispatcher.onTimer();
    expected = absl::DeadlineExceededError(
        "its output could not be begun in time: the disk under spool.dir hangs, or is overloaded");
  }
  CHECK(fixture.host.ended.at("a") == expected);
  CHECK(fixture.host.failures.empty());  // no stage is to blame
  CHECK(fixture.sent() == "0:cancel a 1:cancel a 2:cancel a");
  const size_t handed_over = fixture.sink.descriptors.size();
  fixture.dispatcher.onOutputOpened("a", absl::OkStatus());  // too late: nobody would close it
  CHECK(fixture.sink.descriptors.size() == handed_over);
  for (const uint32_t group : {0, 1, 2})
    fixture.failed(group, "a", absl::StatusCode::kCancelled);
  CHECK(fixture.dispatcher.running() == 0);
  CHECK(!fixture.host.outputs.states[0]->open);
}

TEST_CASE("dispatcher: a worker that is gone when its ring is there is a lost worker, not a failed output",
          "[supervisor]") {
  Fixture fixture;
  fixture.host.may_restart = true;
  fixture.submit("a");
  fixture.start(2, "a");
  fixture.sink.descriptor_status = absl::UnavailableError("sending to the peer: Broken pipe");
  fixture.dispatcher.onOutputOpened("a", absl::OkStatus());
  CHECK(fixture.host.ended.empty());
  fixture.dispatcher.groupLost(GroupIndex(2), absl::UnavailableError("g2 rank 0 died: signal SIGKILL"));
  fixture.failed(0, "a", absl::StatusCode::kCancelled);
  fixture.failed(1, "a", absl::StatusCode::kCancelled);
  REQUIRE(fixture.host.lost.size() == 1);
  CHECK(fixture.host.lost[0].first == "a");
}

TEST_CASE("dispatcher: an output that was begun is waited for as long as its stage", "[supervisor]") {
  Fixture fixture;
  fixture.host.stall_timeout = kPatience;
  fixture.submit("a");
  fixture.dispatcher.onOutputOpened("a", absl::OkStatus());
  fixture.clock.advance(kPatience / 2);
  fixture.dispatcher.onTimer();
  CHECK(fixture.host.ended.empty());
}

TEST_CASE("dispatcher: a result with other than the promised frames is a failure", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  for (const uint32_t group : {0U, 1U, 2U})
    fixture.done(group, "a");
  fixture.outputDone("a", 4);
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kDataLoss);
  CHECK(fixture.dispatcher.running() == 0);
}

}  // namespace
}  // namespace latentd::supervisor
