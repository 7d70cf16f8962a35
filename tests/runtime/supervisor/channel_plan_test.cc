#include "runtime/supervisor/channel_plan.h"

#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;
using std::chrono::milliseconds;

struct Observer final : ChannelObserver {
  void onChannelOpen(EdgeIndex edge, ChannelId channel) override { open.emplace_back(edge.value, channel.value); }
  void onChannelFailed(WorkerId worker, const Status& cause) override { failed.emplace_back(worker, cause); }
  std::vector<std::pair<uint32_t, uint32_t>> open;
  std::vector<std::pair<WorkerId, Status>> failed;
};

struct Fixture {
  static WorkerId worker(uint32_t group, uint32_t rank = 0) { return {GroupIndex(group), Rank(rank)}; }
  void load(uint32_t group, uint64_t epoch = 1) { plan.groupLoaded(GroupIndex(group), Epoch(epoch)); }
  void ready(WorkerId worker, uint32_t channel, int code = 0) {
    wire::EdgeReady event;
    event.set_channel_id(channel);
    event.mutable_status()->set_code(code);
    event.mutable_status()->set_message("no memory");
    plan.onEdgeReady(worker, event);
  }
  void retired(WorkerId worker, uint32_t channel) {
    wire::EdgeRetired event;
    event.set_channel_id(channel);
    plan.onEdgeRetired(worker, event);
  }
  // Opens channel 1 of a chain of one producer and two consumer ranks.
  void openAll() {
    load(0);
    load(1);
    ready(worker(0), 1);
    ready(worker(1, 0), 1);
    ready(worker(1, 1), 1);
    sink.take();
  }

  testing::ManualClock clock;
  config::Topology topology = chainTopology({1, 2});
  FakeSink sink;
  Observer observer;
  ChannelPlan plan{topology, clock, sink, observer, "/run/x"};
};

TEST_CASE("channel_plan: producers listen first, then consumers connect, then the edge is open", "[supervisor]") {
  Fixture fixture;
  fixture.load(0, 3);
  CHECK(fixture.sink.take().empty());
  fixture.load(1, 5);
  auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 1);
  const wire::OpenProducer& producer = sent[0].command.open_producer();
  CHECK(producer.socket_path() == "/run/x/c1-0.sock");
  CHECK(producer.channel().producer_epoch() == 3);
  CHECK(producer.channel().consumer_epoch() == 5);
  CHECK(producer.channel().consumer_ranks() == 2);
  fixture.ready(Fixture::worker(1), 1);  // not asked yet
  CHECK(fixture.sink.take().empty());
  fixture.ready(Fixture::worker(0), 1);
  sent = fixture.sink.take();
  REQUIRE(sent.size() == 2);
  CHECK(sent[1].command.open_consumer().socket_paths(0) == "/run/x/c1-0.sock");
  fixture.ready(Fixture::worker(1, 0), 1);
  CHECK(!fixture.plan.isOpen(EdgeIndex(0)));
  fixture.ready(Fixture::worker(1, 1), 1);
  CHECK(fixture.plan.isOpen(EdgeIndex(0)));
  CHECK(fixture.observer.open == std::vector<std::pair<uint32_t, uint32_t>>{{0, 1}});
  CHECK(fixture.plan.edgeOf(ChannelId(1)) == EdgeIndex(0));
  CHECK(fixture.plan.nextDeadline() == Clock::TimePoint::max());
}

TEST_CASE("channel_plan: both sides are told how tokens are cut", "[supervisor]") {
  Fixture fixture;
  fixture.topology.edges[0].tokens = {TokenCut::kTokens, TokenCut::kRows};
  fixture.load(0);
  fixture.load(1);
  fixture.ready(Fixture::worker(0), 1);
  const auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 3);
  for (const wire::ChannelSpec& channel :
       {sent[0].command.open_producer().channel(), sent[1].command.open_consumer().channel()}) {
    CHECK(channel.producer_tokens() == wire::TOKEN_CUT_TOKENS);
    CHECK(channel.consumer_tokens() == wire::TOKEN_CUT_ROWS);
  }
}

TEST_CASE("channel_plan: survivors retire before a new channel opens", "[supervisor]") {
  Fixture fixture;
  fixture.openAll();
  fixture.plan.groupLost(GroupIndex(0));
  auto sent = fixture.sink.take();
  REQUIRE(sent.size() == 2);
  for (const auto& entry : sent)
    CHECK(entry.command.retire_edge().channel_id() == 1);
  CHECK(!fixture.plan.edgeOf(ChannelId(1)));
  fixture.load(0, 2);
  CHECK(fixture.sink.take().empty());
  fixture.retired(Fixture::worker(1, 0), 1);
  CHECK(fixture.sink.take().empty());
  CHECK(fixture.plan.retiring());
  fixture.retired(Fixture::worker(1, 1), 1);
  sent = fixture.sink.take();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].command.open_producer().channel().channel_id() == 2);
  CHECK(sent[0].command.open_producer().channel().producer_epoch() == 2);
}

TEST_CASE("channel_plan: a survivor that dies while retiring holds nothing up", "[supervisor]") {
  Fixture fixture;
  fixture.openAll();
  fixture.plan.groupLost(GroupIndex(0));
  fixture.plan.groupLost(GroupIndex(1));
  fixture.sink.take();
  fixture.load(0, 2);
  fixture.load(1, 2);
  CHECK(fixture.sink.take().size() == 1);
}

TEST_CASE("channel_plan: consumers that were never told to open are not told to retire", "[supervisor]") {
  Fixture fixture;
  fixture.load(0);
  fixture.load(1);
  fixture.sink.take();
  fixture.plan.groupLost(GroupIndex(0));
  CHECK(fixture.sink.take().empty());
  fixture.load(0, 2);
  CHECK(fixture.sink.take().size() == 1);
}

TEST_CASE("channel_plan: an error and a missing answer are told with edge and cause", "[supervisor]") {
  Fixture fixture;
  fixture.load(0);
  fixture.load(1);
  fixture.ready(Fixture::worker(0), 1, static_cast<int>(absl::StatusCode::kResourceExhausted));
  REQUIRE(fixture.observer.failed.size() == 1);
  CHECK(fixture.observer.failed[0].second.code() == absl::StatusCode::kResourceExhausted);
  CHECK(messageOf(fixture.observer.failed[0].second).find("g0.run->g1.run") != std::string::npos);

  Fixture late;
  late.load(0);
  late.load(1);
  late.clock.advance(milliseconds(1999));
  late.plan.onTimer();
  CHECK(late.observer.failed.empty());
  late.clock.advance(milliseconds(1));
  late.plan.onTimer();
  late.plan.onTimer();
  REQUIRE(late.observer.failed.size() == 1);
  CHECK(late.observer.failed[0].second.code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("channel_plan: at the end both sides retire and nothing opens again", "[supervisor]") {
  Fixture fixture;
  fixture.openAll();
  fixture.plan.retireAll();
  CHECK(fixture.sink.take().size() == 3);
  for (const WorkerId worker : {Fixture::worker(0), Fixture::worker(1, 0), Fixture::worker(1, 1)}) {
    CHECK(fixture.plan.retiring());
    fixture.retired(worker, 1);
  }
  CHECK(!fixture.plan.retiring());
  CHECK(fixture.sink.take().empty());
}

}  // namespace
}  // namespace latentd::supervisor
