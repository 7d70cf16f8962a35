// Replicas of a stage: which of them gets a job, in which order commands go, and what the loss of one takes along.
#include "tests/runtime/supervisor/dispatcher_fixture.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

// The middle of three stages has two replicas. Edges: 0 and 1 from the first group to each, 2 and 3 from each to the
// last one.
constexpr uint32_t kFirst = 0;
constexpr uint32_t kLeft = 1;
constexpr uint32_t kRight = 2;
constexpr uint32_t kLast = 3;

struct Fixture : DispatcherFixture {
  explicit Fixture(const std::vector<uint32_t>& ranks = {1, 1, 1}, const std::vector<uint32_t>& replicas = {1, 2, 1})
      : DispatcherFixture(chainTopology(ranks, replicas)) {}

  // Submits, and lets the first stage be done with it.
  std::string submitted(const JobId& job) {
    submit(job);
    done(kFirst, job);
    return sent();
  }
  void restore(uint32_t group) {
    uint32_t next_channel = 100 * ++restarts_;
    for (uint32_t edge = 0; edge < topology.edges.size(); ++edge) {
      if (topology.edges[edge].from != group && topology.edges[edge].to != group) continue;
      dispatcher.edgeOpened(EdgeIndex(edge), ChannelId(next_channel++));
    }
    dispatcher.groupReady(GroupIndex(group));
    dispatcher.pump();
  }
  void succeed(uint32_t middle, const JobId& job) {
    start(middle, job);
    done(middle, job);
    done(kLast, job);
    outputDone(job);
    CHECK(host.ended.at(job).ok());
  }

 private:
  uint32_t restarts_ = 0;
};

}  // namespace

TEST_CASE("dispatcher: a job gets the replica with the least to do, of equals the one chosen longest ago",
          "[supervisor][replica]") {
  Fixture fixture;
  CHECK(fixture.submitted("a") == "1:run a 0:run a");
  CHECK(fixture.submitted("b") == "2:run b 0:run b");
  CHECK(fixture.submitted("c") == "1:run c 0:run c");
  fixture.start(kRight, "b");
  fixture.consumed(kRight, "b", 1, 0);
  // What is left of b counts, and not how many jobs there are.
  fixture.progress(kRight, "b", 3, 4);
  CHECK(fixture.sent() == "3:run b");
  CHECK(fixture.submitted("d") == "2:run d 0:run d");
  CHECK(fixture.host.queue.empty());

  Fixture uneven;
  uneven.host.steps["a"] = 100;
  CHECK(uneven.submitted("a") == "1:run a 0:run a");
  CHECK(uneven.submitted("b") == "2:run b 0:run b");
  CHECK(uneven.submitted("c") == "2:run c 0:run c");
}

TEST_CASE("dispatcher: each pair of replicas has its own numbers and credits", "[supervisor][replica]") {
  Fixture fixture;
  fixture.topology.limits.in_flight_per_group = 8;
  fixture.host.queue = {"a", "b", "c", "d", "e"};
  fixture.pump();
  // Two credits on each of the two edges; with the fifth there is none left.
  std::vector<std::pair<uint32_t, uint64_t>> promised;
  for (const FakeSink::Sent& entry : fixture.sink.sent) {
    if (entry.worker.group.value != kFirst) continue;
    const wire::ArtifactRef& ref = entry.command.run_stage().outputs(0);
    promised.emplace_back(ref.channel_id(), ref.sequence());
  }
  CHECK(promised == std::vector<std::pair<uint32_t, uint64_t>>{{1, 0}, {2, 0}, {1, 1}, {2, 1}});
  CHECK(fixture.host.queue == std::deque<JobId>{"e"});
  fixture.sink.take();
  fixture.start(kRight, "b");
  fixture.consumed(kRight, "b", 1, 0);
  // Its command there waits for a credit of the next edge.
  const auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].command.run_stage().outputs(0).channel_id() == 2);
  CHECK(sent[0].command.run_stage().outputs(0).sequence() == 2);
  fixture.progress(kRight, "b", 3, 4);
  fixture.done(kLast, "b");
  CHECK(fixture.sent() == "3:run b 2:run e");
}

TEST_CASE("dispatcher: what comes from replicas is sent on with its last step, whoever was admitted first",
          "[supervisor][replica]") {
  Fixture fixture;
  fixture.submitted("a");
  fixture.submitted("b");
  fixture.start(kLeft, "a");
  fixture.start(kRight, "b");
  fixture.progress(kLeft, "a", 6, 8);
  fixture.progress(kRight, "b", 2, 4);
  CHECK(fixture.sent().empty());
  fixture.progress(kRight, "b", 3, 4);
  auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].worker == DispatcherFixture::worker(kLast));
  CHECK(sent[0].command.run_stage().job_id() == "b");
  CHECK(sent[0].command.run_stage().inputs(0).channel_id() == 4);
  CHECK(sent[0].command.run_stage().frame_ring_id() == fixture.host.outputs.find("b")->ring_id);
  // A stage that reports no steps: with its end.
  fixture.submitted("c");
  fixture.done(kLeft, "a");
  CHECK(fixture.sent() == "3:run a");
}

TEST_CASE("dispatcher: jobs that overtook each other keep the order of numbers on every edge",
          "[supervisor][replica]") {
  Fixture fixture({1, 1, 1, 1}, {1, 2});
  fixture.topology.limits.in_flight_per_group = 1;
  const uint32_t next = 3;  // one group after the replicas, and the last one
  const uint32_t last = 4;
  fixture.submitted("x");
  fixture.done(kLeft, "x");
  CHECK(fixture.sent() == "4:run x 3:run x");
  fixture.done(next, "x");
  CHECK(fixture.submitted("early") == "2:run early 0:run early");
  CHECK(fixture.submitted("late") == "1:run late 0:run late");
  fixture.done(kLeft, "late");
  CHECK(fixture.sent() == "3:run late");  // the last group is busy with x
  fixture.done(next, "late");
  fixture.consumed(last, "x", 4, 0);
  fixture.done(kRight, "early");
  CHECK(fixture.sent() == "3:run early");
  fixture.done(next, "early");
  // The earlier job has the later number.
  fixture.done(last, "x");
  CHECK(fixture.sent() == "4:run late");
  fixture.done(last, "late");
  CHECK(fixture.sent() == "4:run early");
}

TEST_CASE("dispatcher: the replica of a consumer is chosen with its producer's command", "[supervisor][replica]") {
  Fixture fixture({1, 2}, {1, 2});
  fixture.submit("a");
  fixture.submit("b");
  const auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 6);
  CHECK(sent[0].worker == DispatcherFixture::worker(1, 0));
  CHECK(sent[1].worker == DispatcherFixture::worker(1, 1));
  CHECK(sent[0].command.run_stage().inputs(0).channel_id() == 1);
  CHECK(sent[0].command.run_stage().frame_ring_id() == fixture.host.outputs.find("a")->ring_id);
  CHECK(sent[1].command.run_stage().frame_ring_id() == 0);
  CHECK(sent[2].command.run_stage().outputs(0).channel_id() == 1);
  CHECK(sent[3].worker == DispatcherFixture::worker(2, 0));
  CHECK(sent[5].command.run_stage().outputs(0).channel_id() == 2);
  CHECK(fixture.dispatcher.isBusy(GroupIndex(2)));
  CHECK(fixture.dispatcher.describeWork(GroupIndex(2)) == "running job b, not begun");
  // An answer of the other replica's rank is none.
  fixture.done(0, "a");
  fixture.done(2, "a", 0);
  fixture.done(2, "a", 1);
  fixture.outputDone("a");
  CHECK(fixture.host.ended.empty());
}

TEST_CASE("dispatcher: the first stage may have replicas too", "[supervisor][replica]") {
  Fixture fixture({1, 1}, {2, 1});
  fixture.host.queue = {"a", "b", "c", "d", "e"};
  fixture.pump();
  CHECK(fixture.sent() == "0:run a 1:run b 0:run c 1:run d");
  CHECK(fixture.host.queue.size() == 1);
  fixture.done(1, "b");
  CHECK(fixture.sent() == "2:run b");
  fixture.done(2, "b");
  CHECK(fixture.sent() == "1:run e");
}

TEST_CASE("dispatcher: the loss of a replica takes along its job alone; the others serve on, and it comes back",
          "[supervisor][replica]") {
  Fixture fixture;
  for (const char* job : {"a", "b", "c", "d"})
    fixture.submitted(job);
  fixture.start(kLeft, "a");
  fixture.start(kRight, "b");
  fixture.consumed(kLeft, "a", 0, 0);
  fixture.consumed(kRight, "b", 1, 0);
  fixture.dispatcher.groupLost(GroupIndex(kLeft), absl::UnavailableError("g1.0 died"));
  CHECK(messageOf(fixture.host.ended.at("a")) == "g1.0 died (stage g1.0)");
  CHECK(fixture.host.ended.size() == 1);
  // c was queued there, and had no part in it.
  REQUIRE(fixture.host.displaced.size() == 1);
  CHECK(fixture.host.displaced[0].first == "c");
  CHECK(fixture.dispatcher.running() == 2);
  fixture.host.queue.push_front("c");
  fixture.pump();
  CHECK(fixture.sent() == "0:run c");  // the other one holds two commands
  fixture.done(kFirst, "c");
  for (const char* job : {"b", "d", "c"})
    fixture.succeed(kRight, job);
  CHECK(fixture.submitted("e").find("2:run e 0:run e") != std::string::npos);
  fixture.restore(kLeft);
  fixture.sent();
  const std::string back = fixture.submitted("f");
  CHECK(back == "1:run f 0:run f");
  fixture.succeed(kRight, "e");
  fixture.succeed(kLeft, "f");
}

TEST_CASE("dispatcher: while no replica of a stage is there jobs stay queued", "[supervisor][replica]") {
  Fixture fixture;
  fixture.dispatcher.groupLost(GroupIndex(kLeft), absl::UnavailableError("gone"));
  fixture.dispatcher.groupLost(GroupIndex(kRight), absl::UnavailableError("gone"));
  fixture.submit("a");
  CHECK(fixture.host.queue.size() == 1);
  // Ready is not enough: its edges must be open.
  fixture.dispatcher.groupReady(GroupIndex(kRight));
  fixture.dispatcher.edgeOpened(EdgeIndex(1), ChannelId(21));
  fixture.pump();
  CHECK(fixture.host.queue.size() == 1);
  fixture.dispatcher.edgeOpened(EdgeIndex(3), ChannelId(22));
  fixture.pump();
  CHECK(fixture.sent() == "2:run a 0:run a");
  CHECK(fixture.dispatcher.waitReason("a", 2) == v1::WAIT_REASON_UNSPECIFIED);
}

TEST_CASE("dispatcher: a stalled replica gets nothing more, and stops nobody else", "[supervisor][replica]") {
  Fixture fixture;
  fixture.submitted("a");
  fixture.start(kLeft, "a");
  fixture.clock.advance(kStall);
  fixture.dispatcher.onTimer();
  REQUIRE(fixture.host.ended.at("a").code() == absl::StatusCode::kDeadlineExceeded);
  fixture.sent();
  CHECK(fixture.submitted("b") == "2:run b 0:run b");
  CHECK(fixture.submitted("c") == "2:run c 0:run c");
  fixture.failed(kLeft, "a", absl::StatusCode::kCancelled);
  CHECK(fixture.submitted("d") == "1:run d 0:run d");
}

TEST_CASE("dispatcher: a cancel goes to the replicas that have the job, and its credits come back",
          "[supervisor][replica]") {
  Fixture fixture;
  fixture.submit("a");
  fixture.submit("b");
  fixture.sent();
  CHECK(fixture.dispatcher.end("b", absl::CancelledError("on request")));
  // Its last command was not sent yet: the promise is discarded where it would have gone.
  const auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 3);
  CHECK(sent[0].worker == DispatcherFixture::worker(kFirst));
  CHECK(sent[1].worker == DispatcherFixture::worker(kRight));
  CHECK(sent[2].worker == DispatcherFixture::worker(kLast));
  REQUIRE(sent[2].command.has_discard_refs());
  CHECK(sent[2].command.discard_refs().refs(0).channel_id() == 4);
  fixture.failed(kFirst, "b", absl::StatusCode::kCancelled);
  fixture.failed(kRight, "b", absl::StatusCode::kCancelled);
  CHECK(fixture.host.ended.empty());
  wire::RefsDiscarded discarded;
  discarded.set_request_id(sent[2].command.discard_refs().request_id());
  // Of another group it says nothing.
  fixture.dispatcher.onDiscarded(DispatcherFixture::worker(kRight), discarded);
  CHECK(fixture.host.ended.empty());
  fixture.dispatcher.onDiscarded(DispatcherFixture::worker(kLast), discarded);
  CHECK(fixture.host.ended.at("b").code() == absl::StatusCode::kCancelled);
  CHECK(fixture.dispatcher.running() == 1);
}

TEST_CASE("dispatcher: on the way to a join all replicas are chosen at once, and order is kept",
          "[supervisor][replica]") {
  // g0 feeds g1 (two replicas) and g2, both feed g3. Groups: g0 0, g1 1 and 2, g2 3, g3 4.
  DispatcherFixture fixture(madeTopology({1, 1, 1, 1}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, {1, 2, 1, 1}));
  const std::vector<StageShape> shapes = shapesOf(fixture.topology);
  for (const size_t place : {0, 1, 2})
    CHECK(shapes[place].before_join);
  CHECK_FALSE(shapes[3].before_join);
  CHECK(shapes[3].fed_by_replicas);
  CHECK_FALSE(shapes[1].fed_by_replicas);
  fixture.submit("a");
  fixture.submit("b");
  CHECK(fixture.sent() == "3:run a 1:run a 0:run a 3:run b 2:run b 0:run b");
  fixture.done(0, "a");
  fixture.done(0, "b");
  fixture.done(3, "a");
  fixture.done(3, "b");
  CHECK(fixture.sent().empty());
  fixture.done(2, "b");
  // From there on b may be first, but not on the edge that both came by.
  CHECK(fixture.sent().empty());
  fixture.done(1, "a");
  CHECK(fixture.sent() == "4:run a 4:run b");
}

TEST_CASE("dispatcher: before a fork whose ways meet again no job overtakes another", "[supervisor][replica]") {
  // g0 feeds g1 (two replicas), which feeds g2 and g3, both feed g4. Groups: g1 1 and 2, g2 3, g3 4, g4 5.
  config::Topology topology = madeTopology({1, 1, 1, 1, 1}, {{0, 1}, {1, 2}, {1, 3}, {2, 4}, {3, 4}}, {1, 2, 1, 1, 1});
  for (config::EdgeSpec& edge : topology.edges)
    edge.slots = 4;
  topology.limits.in_flight_per_group = 1;
  DispatcherFixture fixture(std::move(topology));
  for (const char* job : {"x", "y", "a", "b"}) {
    fixture.submit(job);
    fixture.done(0, job);
  }
  CHECK(fixture.sent() == "5:run x 4:run x 3:run x 1:run x 0:run x 2:run y 0:run y 0:run a 0:run b");
  fixture.done(2, "y");
  CHECK(fixture.sent() == "2:run b");
  for (const char* job : {"x", "y"}) {
    fixture.done(3, job);
    fixture.done(4, job);
  }
  // b is promised to both, a to neither: if b took a slot of one and a one of the other, they could wait for each
  // other.
  CHECK(fixture.sent() == "3:run y 4:run y");
  fixture.done(1, "x");
  CHECK(fixture.sent() == "4:run a 3:run a 1:run a");
  fixture.done(3, "a");
  CHECK(fixture.sent() == "3:run b");
}

TEST_CASE("dispatcher: what waits for a replica that is lost is handed back, for another one to take it",
          "[supervisor][replica]") {
  // g1 stands before a fork to g2 (two replicas) and g3, both feed g4. Groups: g2 2 and 3, g3 4, g4 5.
  DispatcherFixture fixture(madeTopology({1, 1, 1, 1, 1}, {{0, 1}, {1, 2}, {1, 3}, {2, 4}, {3, 4}}, {1, 1, 2, 1, 1}));
  fixture.topology.limits.in_flight_per_group = 1;
  fixture.host.queue = {"a", "b"};
  fixture.pump();
  CHECK(fixture.sent() == "4:run a 2:run a 1:run a 0:run a");
  fixture.done(0, "a");
  CHECK(fixture.sent() == "0:run b");  // g1 is busy; b will go to the other replica of g2
  const bool of_b = GENERATE(true, false);
  fixture.dispatcher.groupLost(GroupIndex(of_b ? 3 : 2), absl::UnavailableError("died"));
  CHECK(fixture.sent().find("0:cancel b") == (of_b ? 0 : std::string::npos));
  CHECK(fixture.host.ended.count("a") == (of_b ? 0 : 1));
  if (!of_b) return;
  fixture.failed(0, "b", absl::StatusCode::kCancelled);
  CHECK(fixture.host.displaced.empty());  // g1 is to let go of what it was promised
  wire::RefsDiscarded discarded;
  discarded.set_request_id(1);
  fixture.dispatcher.onDiscarded(DispatcherFixture::worker(1), discarded);
  REQUIRE(fixture.host.displaced.size() == 1);
  CHECK(fixture.host.displaced[0].first == "b");
}

}  // namespace latentd::supervisor
