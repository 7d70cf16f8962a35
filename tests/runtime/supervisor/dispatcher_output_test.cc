// What becomes of a job whose output fails.
#include "tests/runtime/supervisor/dispatcher_fixture.h"

namespace latentd::supervisor {
namespace {

using Fixture = DispatcherFixture;

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

TEST_CASE("dispatcher: a ring that cannot be made or handed over ends its job's commands", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.sink.take();
  SECTION("made") { fixture.dispatcher.onOutputDone("a", absl::ResourceExhaustedError("spool full")); }
  SECTION("handed over") {
    fixture.sink.descriptor_status = absl::ResourceExhaustedError("the worker does not take descriptors");
    fixture.dispatcher.onOutputOpened("a");
  }
  CHECK(fixture.sent() == "0:cancel a 1:cancel a 2:cancel a");
  fixture.dispatcher.onOutputOpened("a");  // too late: nobody would close it
  CHECK(fixture.sink.descriptors.size() <= 1);
  for (const uint32_t group : {0, 1, 2})
    fixture.failed(group, "a", absl::StatusCode::kCancelled);
  CHECK(absl::IsResourceExhausted(fixture.host.ended.at("a")));
  CHECK(fixture.dispatcher.running() == 0);
  CHECK(!fixture.host.outputs.states[0]->open);
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
