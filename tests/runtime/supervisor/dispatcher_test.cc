#include "runtime/supervisor/dispatcher.h"

#include "runtime/supervisor/limits.h"
#include "tests/runtime/supervisor/dispatcher_fixture.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;
using std::chrono::milliseconds;

using Failures = std::vector<std::pair<uint32_t, absl::StatusCode>>;
using Fixture = DispatcherFixture;

TEST_CASE("dispatcher: every command of a job is sent before any input exists, consumers' first", "[supervisor]") {
  Fixture fixture;
  fixture.makes_outputs = false;
  fixture.submit("a");
  const auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 3);
  for (uint32_t n = 0; n < 3; ++n)
    CHECK(sent[n].worker == Fixture::worker(2 - n));
  const wire::RunStage& first = sent[2].command.run_stage();
  const wire::RunStage& second = sent[1].command.run_stage();
  const wire::RunStage& last = sent[0].command.run_stage();
  CHECK(first.inputs_size() == 0);
  CHECK(first.outputs(0).channel_id() == 1);
  CHECK(second.inputs(0).channel_id() == 1);
  CHECK(second.inputs(0).sequence() == 0);
  CHECK(last.inputs(0).channel_id() == 2);
  CHECK(last.frame_ring_id() == fixture.host.outputs.states[0]->ring_id);
  CHECK(second.frame_ring_id() == 0);
  CHECK(fixture.sink.descriptors.empty());
  CHECK(first.stall_timeout_ms() == 1000);
  // Nothing waits for the ring.
  fixture.dispatcher.onOutputOpened("a", absl::OkStatus());
  CHECK(fixture.sink.descriptors == std::vector<uint64_t>{fixture.host.outputs.states[0]->ring_id});
  fixture.dispatcher.onOutputOpened("unknown", absl::OkStatus());
  CHECK(fixture.sink.descriptors.size() == 1);
}

TEST_CASE("dispatcher: a stage computes from its inputs on, the first one from its start", "[supervisor]") {
  Fixture fixture({1, 2, 1});
  fixture.submit("a");
  fixture.start(0, "a");
  fixture.start(1, "a");
  using Told = std::vector<std::pair<JobId, uint32_t>>;
  CHECK(fixture.host.computing == Told{{"a", 0}});
  wire::InputsConsumed consumed;
  consumed.set_job_id("a");
  fixture.dispatcher.onInputsConsumed(Fixture::worker(1, 1), consumed);
  fixture.dispatcher.onInputsConsumed(Fixture::worker(1, 0), consumed);
  CHECK(fixture.host.computing == Told{{"a", 0}, {"a", 1}});
}

TEST_CASE("dispatcher: a job succeeds when every stage and its output have ended, in any order", "[supervisor]") {
  for (const bool output_first : {true, false}) {
    Fixture fixture;
    fixture.submit("a");
    fixture.done(2, "a");
    CHECK(fixture.host.outputs.states[0]->finished);
    if (output_first) fixture.outputDone("a");
    fixture.done(0, "a");
    fixture.done(1, "a");
    if (!output_first) {
      CHECK(fixture.host.ended.empty());
      fixture.outputDone("a");
    }
    CHECK(fixture.host.ended.at("a").ok());
    CHECK(fixture.dispatcher.running() == 0);
    CHECK(!fixture.host.outputs.states[0]->open);
  }
}

TEST_CASE("dispatcher: a job has succeeded once its hand-offs were told, or cannot be told any more", "[supervisor]") {
  for (const std::string then : {"told", "told before", "lost", "never"}) {
    INFO(then);
    Fixture fixture({2, 1, 1});
    fixture.topology.edges[0].producer_shard_dim = 0;
    fixture.submit("a");
    if (then == "told before") fixture.transferred(0, 0, 1);
    for (const uint32_t rank : {0, 1})
      fixture.done(0, "a", rank, {0});
    fixture.done(1, "a", 0, {0});
    fixture.done(2, "a");
    fixture.transferred(1, 0);
    fixture.outputDone("a");
    fixture.transferred(0, 0, 0);
    fixture.transferred(0, 7, 1);  // of no job
    if (then == "told") {
      CHECK(fixture.host.ended.empty());
      fixture.transferred(0, 0, 1);
    } else if (then == "lost") {
      CHECK(fixture.host.ended.empty());
      fixture.dispatcher.groupLost(GroupIndex(0), absl::UnavailableError("died"));
    } else if (then == "never") {
      fixture.clock.advance(kFiguresTimeout - milliseconds(1));
      fixture.dispatcher.onTimer();
      CHECK(fixture.host.ended.empty());
      CHECK(fixture.dispatcher.nextDeadline() == fixture.clock.now() + milliseconds(1));
      fixture.clock.advance(milliseconds(1));
      fixture.dispatcher.onTimer();
    }
    CHECK(fixture.host.ended.at("a").ok());
    CHECK(fixture.dispatcher.running() == 0);
  }
}

TEST_CASE("dispatcher: a rank that publishes nothing is not waited for", "[supervisor]") {
  Fixture fixture({2, 1, 1});
  fixture.submit("a");
  for (const uint32_t rank : {0, 1})
    fixture.done(0, "a", rank, {0});
  fixture.done(1, "a");
  fixture.done(2, "a");
  fixture.outputDone("a");
  CHECK(fixture.host.ended.empty());
  fixture.transferred(0, 0, 0);
  CHECK(fixture.host.ended.at("a").ok());
}

TEST_CASE("dispatcher: jobs fill the pipeline up to credits and queued commands, and no further", "[supervisor]") {
  Fixture fixture;
  fixture.host.queue = {"a", "b", "c", "d"};
  fixture.pump();
  // Two commands a worker, two credits an edge.
  CHECK(fixture.sent() == "2:run a 2:run b 1:run a 1:run b 0:run a 0:run b");
  CHECK(fixture.host.queue.size() == 2);
  fixture.done(0, "a");
  CHECK(fixture.sent().empty());  // no credit: both artifacts are unconsumed
  wire::InputsConsumed consumed;
  consumed.set_job_id("a");
  consumed.add_refs()->set_channel_id(1);
  fixture.dispatcher.onInputsConsumed(Fixture::worker(1), consumed);
  fixture.pump();
  CHECK(fixture.sent() == "0:run c");
  fixture.done(1, "a");
  CHECK(fixture.sent().empty());  // the next edge has no credit yet
  fixture.done(2, "a");
  CHECK(fixture.sent() == "2:run c 1:run c");
}

TEST_CASE("dispatcher: a credit needs every consumer rank", "[supervisor]") {
  Fixture fixture({1, 2});
  fixture.host.queue = {"a", "b", "c"};
  fixture.pump();
  fixture.sink.take();
  fixture.done(0, "a");
  fixture.done(1, "a", 0);
  CHECK(fixture.sent().empty());
  fixture.done(1, "a", 1);
  CHECK(fixture.sent() == "1:run c 1:run c 0:run c");
}

TEST_CASE("dispatcher: a failure is told at once, the rest of the job is cancelled and awaited", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.sink.take();
  fixture.done(0, "a");
  fixture.failed(1, "a", absl::StatusCode::kResourceExhausted);
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kResourceExhausted);
  CHECK(messageOf(fixture.host.ended.at("a")).find("stage g1 (fake), rank 0") != std::string::npos);
  CHECK(fixture.host.outputs.states[0]->aborted);
  CHECK(fixture.sent() == "1:cancel a 2:cancel a");
  CHECK(fixture.dispatcher.running() == 1);
  fixture.failed(2, "a", absl::StatusCode::kUnavailable);
  CHECK(fixture.dispatcher.running() == 0);
  CHECK(fixture.host.ended.size() == 1);
}

TEST_CASE("dispatcher: CANCELLED is told only when nothing is left in any worker", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.sink.take();
  CHECK(fixture.dispatcher.end("a", absl::CancelledError("on request")));
  CHECK(!fixture.dispatcher.end("a", absl::CancelledError("again")));
  CHECK(fixture.sent() == "0:cancel a 1:cancel a 2:cancel a");
  fixture.failed(0, "a", absl::StatusCode::kCancelled);
  fixture.failed(1, "a", absl::StatusCode::kCancelled);
  CHECK(fixture.host.ended.empty());
  fixture.failed(2, "a", absl::StatusCode::kCancelled);
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kCancelled);
}

TEST_CASE("dispatcher: a promise without a consumer's command is discarded and its credit comes back", "[supervisor]") {
  Fixture fixture;
  fixture.host.queue = {"a", "b", "c", "d"};
  fixture.pump();
  fixture.sink.take();
  // c's first command goes once g0 has room, but g1 holds two commands: c's artifact has no consumer's command.
  wire::InputsConsumed consumed;
  consumed.set_job_id("a");
  consumed.add_refs()->set_channel_id(1);
  fixture.dispatcher.onInputsConsumed(Fixture::worker(1), consumed);
  fixture.done(0, "a");
  CHECK(fixture.sent() == "0:run c");
  CHECK(fixture.dispatcher.end("c", absl::CancelledError("on request")));
  auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].command.cancel().job_id() == "c");
  const wire::DiscardRefs discard = sent[1].command.discard_refs();
  CHECK(sent[1].worker.group.value == 1);
  CHECK(discard.refs(0).sequence() == 2);
  CHECK(discard.sync());
  CHECK(discard.reason() == "cancelled");
  fixture.failed(0, "c", absl::StatusCode::kCancelled);
  CHECK(fixture.host.ended.empty());
  wire::RefsDiscarded discarded;
  discarded.set_request_id(discard.request_id());
  fixture.dispatcher.onDiscarded(Fixture::worker(1), discarded);
  CHECK(fixture.host.ended.count("c") == 1);
  fixture.pump();
  CHECK(fixture.sent() == "0:run d");
}

TEST_CASE("dispatcher: a lost group fails what it holds; what has not reached it goes on after its return",
          "[supervisor]") {
  Fixture fixture;
  fixture.topology.limits.in_flight_per_group = 1;
  fixture.host.queue = {"a", "b", "c"};
  fixture.pump();
  fixture.done(0, "a");
  CHECK(fixture.sent() == "2:run a 1:run a 0:run a 0:run b");
  fixture.start(2, "a");
  fixture.dispatcher.groupLost(GroupIndex(2), absl::UnavailableError("g2 rank 0 died: signal SIGKILL"));
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kUnavailable);
  CHECK(messageOf(fixture.host.ended.at("a")).find("SIGKILL") != std::string::npos);
  CHECK(messageOf(fixture.host.ended.at("a")).find("stage g2") != std::string::npos);
  CHECK(fixture.host.ended.count("b") == 0);
  fixture.failed(1, "a", absl::StatusCode::kUnavailable);
  CHECK(fixture.dispatcher.running() == 1);
  CHECK(fixture.sent() == "1:cancel a");  // b waits for the edge, c keeps its place in the queue
  fixture.dispatcher.edgeOpened(EdgeIndex(1), ChannelId(9));
  fixture.dispatcher.groupReady(GroupIndex(2));
  fixture.pump();
  const auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 2);
  CHECK(sent[1].command.run_stage().outputs(0).channel_id() == 9);
  CHECK(sent[1].command.run_stage().outputs(0).sequence() == 0);
  for (const uint32_t group : {0U, 1U, 2U})
    fixture.done(group, "b");
  fixture.outputDone("b");
  CHECK(fixture.host.ended.at("b").ok());
  CHECK(fixture.host.queue.empty());
}

TEST_CASE("dispatcher: a group that is held begins nothing until it is held no longer, or was lost and is back",
          "[supervisor]") {
  Fixture fixture;
  fixture.dispatcher.groupHeld(GroupIndex(1), true);
  SECTION("it goes on") {
    fixture.host.queue = {"a"};
    fixture.pump();
    CHECK(fixture.sent().find("1:run") == std::string::npos);
    fixture.dispatcher.groupHeld(GroupIndex(1), false);
  }
  SECTION("it comes back") {
    fixture.dispatcher.groupLost(GroupIndex(1), absl::UnavailableError("g1 rank 0 died: signal SIGTERM"));
    for (const uint32_t edge : {0U, 1U})
      fixture.dispatcher.edgeOpened(EdgeIndex(edge), ChannelId(8 + edge));
    fixture.dispatcher.groupReady(GroupIndex(1));
    fixture.host.queue = {"a"};
  }
  fixture.pump();
  CHECK(fixture.sent().find("1:run a") != std::string::npos);
}

TEST_CASE("dispatcher: a job that may restart is handed back once no worker holds anything of it", "[supervisor]") {
  Fixture fixture;
  fixture.host.may_restart = true;
  fixture.submit("a");
  fixture.done(0, "a");
  fixture.start(2, "a");
  fixture.dispatcher.groupLost(GroupIndex(2), absl::UnavailableError("g2 died\n  its line"));
  CHECK(fixture.host.ended.empty());
  CHECK(fixture.host.lost.empty());  // g1 still holds it
  SECTION("released") {
    fixture.failed(1, "a", absl::StatusCode::kUnavailable);
    REQUIRE(fixture.host.lost.size() == 1);
    CHECK(fixture.host.lost[0].first == "a");
    CHECK(messageOf(fixture.host.lost[0].second) == "g2 died (stage g2)\n  its line");
    CHECK(!fixture.dispatcher.holds("a"));
    CHECK(!fixture.host.outputs.find("a")->open);
  }
  SECTION("cancelled meanwhile") {
    CHECK(fixture.dispatcher.end("a", absl::CancelledError("on request")));
    CHECK(fixture.host.ended.empty());
    fixture.failed(1, "a", absl::StatusCode::kUnavailable);
    CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kCancelled);
  }
  SECTION("its deadline passed meanwhile") {
    CHECK(fixture.dispatcher.end("a", absl::DeadlineExceededError("late")));
    CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kDeadlineExceeded);
    fixture.failed(1, "a", absl::StatusCode::kUnavailable);
  }
  CHECK(fixture.host.lost.size() + fixture.host.ended.size() == 1);
  CHECK(fixture.dispatcher.running() == 0);
}

TEST_CASE("dispatcher: only a death restarts a job, also one that is known after its consequence", "[supervisor]") {
  Fixture fixture;
  fixture.host.may_restart = true;
  fixture.submit("a");
  fixture.failed(0, "a", absl::StatusCode::kResourceExhausted);
  for (const uint32_t group : {1U, 2U})
    fixture.failed(group, "a", absl::StatusCode::kCancelled);
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kResourceExhausted);

  fixture.submit("b");
  fixture.failed(1, "b", absl::StatusCode::kUnavailable);
  fixture.dispatcher.groupLost(GroupIndex(0), absl::UnavailableError("g0 died"));
  fixture.failed(2, "b", absl::StatusCode::kCancelled);
  REQUIRE(fixture.host.lost.size() == 1);
  CHECK(messageOf(fixture.host.lost[0].second).find("g0 died") == 0);
}

TEST_CASE("dispatcher: artifacts on a lost group's edges are lost with it", "[supervisor]") {
  Fixture fixture;
  fixture.topology.limits.in_flight_per_group = 1;
  fixture.host.queue = {"a", "b"};
  fixture.pump();
  fixture.done(0, "a");
  fixture.done(0, "b");  // b's text is done and unconsumed, g1 is busy with a
  fixture.dispatcher.groupLost(GroupIndex(0), absl::UnavailableError("gone"));
  fixture.failed(1, "a", absl::StatusCode::kCancelled);
  fixture.failed(2, "a", absl::StatusCode::kCancelled);
  // Neither of them was running there any more.
  CHECK(fixture.host.ended.empty());
  REQUIRE(fixture.host.displaced.size() == 2);
  CHECK(messageOf(fixture.host.displaced[0].second) == "gone");
  CHECK(fixture.host.failures.empty());
  CHECK(fixture.dispatcher.running() == 0);
}

TEST_CASE("dispatcher: a job that its group has not begun is handed back when the group is lost", "[supervisor]") {
  for (const bool obeys : {true, false}) {
    Fixture fixture;
    fixture.host.queue = {"a", "b"};
    fixture.pump();
    fixture.done(0, "a");
    fixture.done(0, "b");
    fixture.start(1, "a");
    if (obeys) {
      fixture.dispatcher.groupLost(GroupIndex(1), absl::UnavailableError("g1 died"));
      CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kUnavailable);
    } else {
      // It is replaced because it does not end a, which was cancelled: b is innocent.
      fixture.dispatcher.end("a", absl::CancelledError("on request"));
      fixture.clock.advance(kStall);
      fixture.dispatcher.onTimer();
      REQUIRE(!fixture.host.unusable.empty());
      fixture.dispatcher.groupLost(GroupIndex(1), fixture.host.unusable[0].second);
    }
    CHECK(fixture.host.ended.count("b") == 0);
    CHECK(fixture.host.displaced.empty());  // g2 still holds it
    fixture.failed(2, "a", absl::StatusCode::kCancelled);
    fixture.failed(2, "b", absl::StatusCode::kCancelled);
    REQUIRE(fixture.host.displaced.size() == 1);
    CHECK(fixture.host.displaced[0].first == "b");
    CHECK(fixture.dispatcher.running() == 0);
    CHECK(fixture.host.ended.size() == 1);
  }
}

TEST_CASE("dispatcher: a worker that asks for its replacement takes no job along that it has not begun",
          "[supervisor]") {
  Fixture fixture;
  fixture.host.queue = {"a", "b"};
  fixture.pump();
  fixture.done(0, "a");
  fixture.done(0, "b");
  fixture.start(1, "a");
  const bool refused = GENERATE(true, false);
  if (refused) fixture.failed(1, "b", absl::StatusCode::kUnavailable);
  fixture.failed(1, "a", absl::StatusCode::kDataLoss, true);
  REQUIRE(fixture.host.unusable.size() == 1);
  CHECK(fixture.host.unusable[0].first == 1);
  fixture.dispatcher.groupLost(GroupIndex(1), fixture.host.unusable[0].second);
  fixture.failed(2, "a", absl::StatusCode::kCancelled);
  fixture.failed(2, "b", absl::StatusCode::kCancelled);
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kDataLoss);
  REQUIRE(fixture.host.displaced.size() == 1);
  CHECK(fixture.host.displaced[0].first == "b");
  CHECK(fixture.host.failures == Failures{{1, absl::StatusCode::kDataLoss}});
}

TEST_CASE("dispatcher: a rank that runs ahead does not make the next job a part of the first one's death",
          "[supervisor]") {
  Fixture fixture({1, 2});
  fixture.host.queue = {"a", "b"};
  fixture.pump();
  fixture.done(0, "a");
  fixture.done(0, "b");
  fixture.start(1, "a");
  fixture.done(1, "a", 1);
  fixture.start(1, "b", 1);
  fixture.dispatcher.groupLost(GroupIndex(1), absl::UnavailableError("g1 rank 0 died"));
  CHECK(fixture.host.ended.count("a") == 1);
  REQUIRE(fixture.host.displaced.size() == 1);
  CHECK(fixture.host.displaced[0].first == "b");
}

TEST_CASE("dispatcher: whoever is first in a group that dies is suspected, begun or not", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.done(0, "a");
  fixture.dispatcher.groupLost(GroupIndex(1), absl::UnavailableError("g1 died"));
  CHECK(fixture.host.displaced.empty());
  CHECK(messageOf(fixture.host.ended.at("a")) == "g1 died (stage g1, not begun)");
}

TEST_CASE("dispatcher: a failure counts against the group that caused it, a cancel against none", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.done(0, "a");
  fixture.start(1, "a");
  fixture.failed(2, "a", absl::StatusCode::kUnavailable);  // its peer's death, which is told later
  CHECK(fixture.host.failures.empty());
  fixture.dispatcher.groupLost(GroupIndex(1), absl::UnavailableError("g1 died"));
  CHECK(fixture.host.failures == Failures{{1, absl::StatusCode::kUnavailable}});

  Fixture stalls;
  stalls.submit("a");
  stalls.start(0, "a");
  stalls.clock.advance(kStall);
  stalls.dispatcher.onTimer();
  CHECK(stalls.host.failures == Failures{{0, absl::StatusCode::kDeadlineExceeded}});

  Fixture cancelled;
  cancelled.submit("a");
  cancelled.dispatcher.end("a", absl::CancelledError("on request"));
  for (const uint32_t group : {0U, 1U, 2U})
    cancelled.failed(group, "a", absl::StatusCode::kCancelled);
  CHECK(cancelled.host.ended.count("a") == 1);
  CHECK(cancelled.host.failures.empty());
}

TEST_CASE("dispatcher: a group may have a stall limit of its own, which a job's overrides", "[supervisor]") {
  for (const bool own : {true, false}) {
    Fixture fixture;
    fixture.topology.groups[1].stall = 5 * kStall;
    if (!own) fixture.host.stall_timeout.reset();
    fixture.submit("a");
    const auto sent = fixture.sink.take();
    CHECK(sent[0].command.run_stage().stall_timeout_ms() == 1000);
    CHECK(sent[1].command.run_stage().stall_timeout_ms() == (own ? 1000 : 5000));
    fixture.done(0, "a");
    fixture.clock.advance(kStall);
    fixture.dispatcher.onTimer();
    CHECK(fixture.host.ended.count("a") == (own ? 1 : 0));
    fixture.clock.advance(4 * kStall);
    fixture.dispatcher.onTimer();
    CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_CASE("dispatcher: a stage without progress stalls its job, progress extends it", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.sink.take();
  fixture.start(0, "a");
  CHECK(fixture.dispatcher.nextDeadline() == fixture.clock.now() + kStall);
  for (uint32_t step = 1; step <= 3; ++step) {
    fixture.clock.advance(kStall - milliseconds(1));
    fixture.dispatcher.onTimer();
    wire::StepProgress progress;
    progress.set_job_id("a");
    progress.set_step(step);
    progress.set_steps(8);
    fixture.dispatcher.onProgress(Fixture::worker(0), progress);
  }
  CHECK(fixture.host.last_step == 3);
  CHECK(fixture.host.ended.empty());
  fixture.clock.advance(kStall);
  fixture.dispatcher.onTimer();
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(messageOf(fixture.host.ended.at("a")).find("stage g0, 3 of 8 steps done") != std::string::npos);
  CHECK(fixture.host.unusable.empty());
}

TEST_CASE("dispatcher: a job's own short stall_timeout does not make its worker a broken one", "[supervisor]") {
  Fixture fixture;
  fixture.topology.deadlines.stall = 10 * kStall;
  fixture.submit("a");
  fixture.start(0, "a");
  fixture.clock.advance(kStall);
  fixture.dispatcher.onTimer();
  REQUIRE(fixture.host.ended.at("a").code() == absl::StatusCode::kDeadlineExceeded);
  fixture.clock.advance(10 * kStall - milliseconds(1));
  fixture.dispatcher.onTimer();
  CHECK(fixture.host.unusable.empty());
  fixture.clock.advance(milliseconds(1));
  fixture.dispatcher.onTimer();
  CHECK(fixture.host.unusable.size() == 3);
}

TEST_CASE("dispatcher: behind a stalled command nothing is begun until it has ended or its group is replaced",
          "[supervisor]") {
  for (const bool obeys : {true, false}) {
    Fixture fixture;
    fixture.submit("a");
    fixture.done(0, "a");
    fixture.clock.advance(kStall);
    fixture.dispatcher.onTimer();
    REQUIRE(fixture.host.ended.at("a").code() == absl::StatusCode::kDeadlineExceeded);
    fixture.failed(2, "a", absl::StatusCode::kCancelled);
    fixture.submit("b");
    CHECK(fixture.host.queue.size() == 1);
    if (obeys) {
      fixture.failed(1, "a", absl::StatusCode::kCancelled);
    } else {
      fixture.dispatcher.groupLost(GroupIndex(1), absl::UnavailableError("replaced"));
      CHECK(fixture.host.ended.size() == 1);
      fixture.dispatcher.edgeOpened(EdgeIndex(0), ChannelId(11));
      fixture.dispatcher.edgeOpened(EdgeIndex(1), ChannelId(12));
      fixture.dispatcher.groupReady(GroupIndex(1));
      fixture.pump();
    }
    CHECK(fixture.host.queue.empty());
    CHECK(fixture.host.ended.size() == 1);
  }
}

TEST_CASE("dispatcher: a consumer does not stall while its producers work", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.start(1, "a");
  for (int step = 1; step < 20; ++step) {
    fixture.clock.advance(kStall / 2);
    wire::StepProgress progress;
    progress.set_job_id("a");
    progress.set_step(step);
    fixture.dispatcher.onProgress(Fixture::worker(0), progress);
    fixture.dispatcher.onTimer();
  }
  CHECK(fixture.host.ended.empty());
  fixture.done(0, "a");
  fixture.clock.advance(kStall - milliseconds(1));
  fixture.dispatcher.onTimer();
  CHECK(fixture.host.ended.empty());
  fixture.clock.advance(milliseconds(1));
  fixture.dispatcher.onTimer();
  CHECK(fixture.host.ended.count("a") == 1);
}

TEST_CASE("dispatcher: a group that does not end a cancelled command is told, once a time-out", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.dispatcher.end("a", absl::CancelledError("on request"));
  fixture.failed(1, "a", absl::StatusCode::kCancelled);
  fixture.failed(2, "a", absl::StatusCode::kCancelled);
  fixture.clock.advance(kStall);
  fixture.dispatcher.onTimer();
  REQUIRE(fixture.host.unusable.size() == 1);
  CHECK(fixture.host.unusable[0].first == 0);
  fixture.dispatcher.onTimer();
  CHECK(fixture.host.unusable.size() == 1);
  fixture.dispatcher.groupLost(GroupIndex(0), fixture.host.unusable[0].second);
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kCancelled);
  CHECK(fixture.dispatcher.running() == 0);
  CHECK(fixture.dispatcher.nextDeadline() == Clock::TimePoint::max());
}

TEST_CASE("dispatcher: a failure that may be a consequence waits for its cause, which replaces it", "[supervisor]") {
  Fixture fixture;
  fixture.host.stall_timeout = 2 * kCauseTimeout;
  fixture.submit("a");
  fixture.start(1, "a");
  fixture.failed(2, "a", absl::StatusCode::kUnavailable);
  CHECK(fixture.host.ended.empty());
  CHECK(fixture.dispatcher.nextDeadline() == fixture.clock.now() + kCauseTimeout);
  fixture.failed(0, "a", absl::StatusCode::kCancelled);
  fixture.dispatcher.groupLost(GroupIndex(1), absl::UnavailableError("g1 rank 0 died: signal SIGKILL"));
  CHECK(messageOf(fixture.host.ended.at("a")) == "g1 rank 0 died: signal SIGKILL (stage g1)");
  CHECK(fixture.dispatcher.running() == 0);

  Fixture alone;
  alone.submit("a");
  for (const uint32_t group : {0U, 1U})
    alone.failed(group, "a", absl::StatusCode::kUnavailable);
  alone.failed(2, "a", absl::StatusCode::kUnavailable);
  CHECK(alone.dispatcher.running() == 1);
  alone.clock.advance(kCauseTimeout);
  alone.dispatcher.onTimer();
  CHECK(messageOf(alone.host.ended.at("a")).find("stage g0 (fake), rank 0, step 0: because") != std::string::npos);
  CHECK(alone.dispatcher.running() == 0);
}

TEST_CASE("dispatcher: what a rank met of another gives way to what that one tells", "[supervisor]") {
  const auto met = [](Fixture& fixture, uint32_t rank, absl::StatusCode code) {
    wire::StageFailed event;
    event.set_job_id("a");
    event.mutable_status()->set_code(static_cast<int>(code));
    event.mutable_status()->set_message("a peer left");
    event.set_recycle(true);
    event.set_of_peer(true);
    fixture.dispatcher.onFailed(Fixture::worker(0, rank), event);
  };
  Fixture told({3});
  told.submit("a");
  met(told, 0, absl::StatusCode::kDeadlineExceeded);
  met(told, 2, absl::StatusCode::kUnavailable);
  CHECK(told.host.ended.empty());
  CHECK(told.host.unusable.empty());
  CHECK(told.host.suspect.size() == 2);
  told.failed(0, "a", absl::StatusCode::kInternal, /*recycle=*/true, /*rank=*/1);
  CHECK(messageOf(told.host.ended.at("a")) == "stage g0 (fake), rank 1, step 0: because");
  CHECK(told.host.unusable.size() == 1);

  Fixture dead({3});
  dead.submit("a");
  dead.start(0, "a");
  met(dead, 0, absl::StatusCode::kDeadlineExceeded);
  dead.dispatcher.groupLost(GroupIndex(0), absl::UnavailableError("g0 rank 1 died: signal SIGKILL"));
  CHECK(messageOf(dead.host.ended.at("a")) == "g0 rank 1 died: signal SIGKILL (stage g0)");

  Fixture silent({3});
  silent.submit("a");
  met(silent, 0, absl::StatusCode::kDeadlineExceeded);
  silent.clock.advance(kCauseTimeout);
  silent.dispatcher.onTimer();
  CHECK(silent.host.ended.at("a").code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("dispatcher: of failures that went down the edges the first of the pipeline is told", "[supervisor]") {
  // In this order they may come: the output's, the consumer's, the producer's.
  Fixture fixture;
  fixture.submit("a");
  fixture.dispatcher.onOutputDone("a", absl::ResourceExhaustedError("because"));
  fixture.failed(2, "a", absl::StatusCode::kResourceExhausted);
  fixture.failed(1, "a", absl::StatusCode::kResourceExhausted);
  CHECK(fixture.host.ended.empty());
  fixture.failed(0, "a", absl::StatusCode::kResourceExhausted);
  CHECK(messageOf(fixture.host.ended.at("a")).find("stage g0 (fake)") == 0);
  CHECK(fixture.dispatcher.running() == 0);

  // A producer that only obeys, or that has no time to answer, is not to blame.
  for (const bool answers : {true, false}) {
    Fixture obeying;
    obeying.submit("a");
    obeying.failed(1, "a", absl::StatusCode::kInternal);
    CHECK(obeying.host.ended.empty());
    if (answers) {
      obeying.failed(0, "a", absl::StatusCode::kCancelled);
    } else {
      obeying.clock.advance(kCauseTimeout);
      obeying.dispatcher.onTimer();
    }
    CHECK(messageOf(obeying.host.ended.at("a")).find("stage g1 (fake)") == 0);
  }
}

TEST_CASE("dispatcher: a cancel or a deadline does not wait for a cause", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.failed(2, "a", absl::StatusCode::kUnavailable);
  CHECK(!fixture.dispatcher.end("a", absl::CancelledError("asked")));
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("dispatcher: stale, repeated and unknown events change nothing", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.done(0, "a");
  fixture.done(0, "a");
  fixture.failed(0, "a", absl::StatusCode::kInternal);
  fixture.done(1, "unknown");
  fixture.start(2, "unknown");
  wire::RefsDiscarded discarded;
  discarded.set_request_id(77);
  fixture.dispatcher.onDiscarded(Fixture::worker(1), discarded);
  CHECK(fixture.host.ended.empty());
  CHECK(fixture.host.stages_done == 1);
  fixture.done(1, "a");
  fixture.done(2, "a");
  fixture.outputDone("a");
  CHECK(fixture.host.ended.at("a").ok());
}

TEST_CASE("dispatcher: an unasked CANCELLED of a worker is a failure", "[supervisor]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.failed(0, "a", absl::StatusCode::kCancelled);
  CHECK(fixture.host.ended.at("a").code() == absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace latentd::supervisor
