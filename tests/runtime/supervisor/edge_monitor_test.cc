#include "runtime/supervisor/edge_monitor.h"

#include "runtime/metrics/registry.h"
#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

wire::TransferDone published(uint64_t bytes) {
  wire::TransferDone done;
  done.set_bytes(bytes);
  done.set_pooled(true);
  return done;
}

wire::EdgeStats stats(uint32_t slots_in_use, uint64_t bytes_read, uint32_t channel = 1) {
  wire::EdgeStats stats;
  stats.set_channel_id(channel);
  stats.set_slots_in_use(slots_in_use);
  stats.set_bytes_read(bytes_read);
  return stats;
}

// g0 with two ranks feeds g1 with three.
struct Fixture {
  explicit Fixture(bool parts) : topology(chainTopology({2, 3})) {
    if (parts) topology.edges[0].tokens.producer = TokenCut::kTokens;
    monitor.emplace(topology, metrics);
  }
  double read(const char* rank) { return metrics.read.with("g0.run->g1.run", rank).Value(); }

  config::Topology topology;
  metrics::Registry registry;
  metrics::EdgeMetrics metrics{registry};
  std::optional<EdgeMonitor> monitor;
};

constexpr EdgeIndex kEdge(0);

}  // namespace

TEST_CASE("edge monitor: each rank that publishes its part, and each that reads one, has figures of its own",
          "[supervisor]") {
  Fixture fixture(true);
  EdgeMonitor& monitor = *fixture.monitor;
  monitor.onTransfer(kEdge, Rank(0), published(100));
  monitor.onTransfer(kEdge, Rank(1), published(60));
  monitor.onStats(kEdge, {GroupIndex(0), Rank(1)}, stats(2, 0));
  monitor.onStats(kEdge, {GroupIndex(1), Rank(2)}, stats(0, 50));
  monitor.onStats(kEdge, {GroupIndex(1), Rank(2)}, stats(0, 80));

  const v1::Edge edge = monitor.report().edges(0);
  REQUIRE(edge.producers_size() == 2);
  CHECK(edge.producers(0).bytes() == 100);
  CHECK(edge.producers(0).slots_in_use() == 0);
  CHECK(edge.producers(1).rank() == 1);
  CHECK(edge.producers(1).bytes() == 60);
  CHECK(edge.producers(1).handoffs() == 1);
  CHECK(edge.producers(1).slots_in_use() == 2);
  REQUIRE(edge.consumers_size() == 3);
  CHECK(edge.consumers(2).bytes() == 80);
  CHECK(edge.consumers(0).bytes() == 0);
  CHECK(edge.handoffs() == 2);
  CHECK(edge.bytes() == 160);
  CHECK(edge.slots_in_use() == 2);
  CHECK(fixture.metrics.published.with("g0.run->g1.run", "1").Value() == 60);
  CHECK(fixture.read("2") == 80);
}

TEST_CASE("edge monitor: figures outlive a channel, whose totals begin again; its slots do not", "[supervisor]") {
  Fixture fixture(true);
  EdgeMonitor& monitor = *fixture.monitor;
  monitor.onTransfer(kEdge, Rank(1), published(60));
  monitor.onStats(kEdge, {GroupIndex(0), Rank(1)}, stats(2, 0));
  monitor.onStats(kEdge, {GroupIndex(1), Rank(0)}, stats(0, 70));
  monitor.onClosed(kEdge);
  monitor.onStats(kEdge, {GroupIndex(1), Rank(0)}, stats(0, 10, 2));
  const v1::Edge edge = monitor.report().edges(0);
  CHECK(edge.consumers(0).bytes() == 80);
  CHECK(edge.producers(1).bytes() == 60);
  CHECK(edge.producers(1).slots_in_use() == 0);
  CHECK(edge.slots_in_use() == 0);
}

TEST_CASE("edge monitor: what a consumer read ahead is counted once, and never back", "[supervisor]") {
  Fixture fixture(true);
  const auto tell = [&](uint64_t read_ahead, uint64_t reread, uint32_t channel) {
    wire::EdgeStats told = stats(0, 0, channel);
    told.set_read_ahead(read_ahead);
    told.set_reread(reread);
    fixture.monitor->onStats(kEdge, {GroupIndex(1), Rank(0)}, told);
  };
  tell(5, 1, 1);
  tell(5, 1, 1);
  tell(4, 0, 1);
  tell(2, 1, 2);  // another channel
  CHECK(fixture.metrics.read_ahead.with("g0.run->g1.run").Value() == 7);
  CHECK(fixture.metrics.reread.with("g0.run->g1.run").Value() == 2);
}

TEST_CASE("edge monitor: of a producer whose ranks hold the same, one publishes", "[supervisor]") {
  const Fixture fixture(false);
  CHECK(fixture.monitor->report().edges(0).producers_size() == 1);
  CHECK(fixture.monitor->report().edges(0).consumers_size() == 3);
  CHECK(fixture.registry.expose().find("latentd_edge_published_bytes_total{edge=\"g0.run->g1.run\",rank=\"1\"}") ==
        std::string::npos);
  CHECK(fixture.registry.expose().find("latentd_edge_read_bytes_total{edge=\"g0.run->g1.run\",rank=\"2\"} 0\n") !=
        std::string::npos);
}

}  // namespace latentd::supervisor
