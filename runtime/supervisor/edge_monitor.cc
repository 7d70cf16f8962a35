#include "runtime/supervisor/edge_monitor.h"

#include <utility>

namespace latentd::supervisor {

EdgeMonitor::EdgeMonitor(const config::Topology& topology, metrics::EdgeMetrics& metrics)
    : topology_(topology), metrics_(metrics), edges_(topology.edges.size()) {
  for (size_t index = 0; index < edges_.size(); ++index) {
    const config::EdgeSpec& spec = topology.edges[index];
    metrics_.slots.with(nameOf(spec)).Increment(spec.slots);
    metrics_.slots_in_use.with(nameOf(spec)).Set(0);
    for (uint32_t rank = 0; rank < (spec.publishesParts() ? topology.groups[spec.from].ranks() : 1); ++rank) {
      edges_[index].producers[Rank(rank)];
      metrics_.published.with(nameOf(spec), std::to_string(rank));
    }
    for (uint32_t rank = 0; rank < topology.groups[spec.to].ranks(); ++rank) {
      edges_[index].consumers[Rank(rank)];
      metrics_.read.with(nameOf(spec), std::to_string(rank));
    }
  }
}

const std::string& EdgeMonitor::nameOf(const config::EdgeSpec& spec) const { return topology_.links[spec.link].name; }

void EdgeMonitor::setSlotsInUse(const config::EdgeSpec& spec) {
  uint32_t sum = 0;
  for (size_t index = 0; index < edges_.size(); ++index)
    sum += topology_.edges[index].link == spec.link ? edges_[index].inUse() : 0;
  metrics_.slots_in_use.with(nameOf(spec)).Set(sum);
}

void EdgeMonitor::onTransfer(EdgeIndex edge, Rank producer, const internal::v1::TransferDone& transfer) {
  const std::string& name = nameOf(topology_.edges[edge.value]);
  RankFigures& figures = edges_[edge.value].producers[producer];
  ++figures.handoffs;
  figures.bytes += transfer.bytes();
  metrics_.published.with(name, std::to_string(producer.value)).Increment(static_cast<double>(transfer.bytes()));
  metrics_.handoffs.with(name).Increment();
  metrics_.bytes.with(name).Increment(static_cast<double>(transfer.bytes()));
  metrics_.handoff.with(name).Observe(transfer.handoff_seconds());
  metrics_.slot_wait.with(name).Observe(transfer.slot_wait_seconds());
  if (!transfer.pooled()) metrics_.unpooled.with(name).Increment();
}

void EdgeMonitor::onStats(EdgeIndex edge, WorkerId worker, const internal::v1::EdgeStats& stats) {
  const config::EdgeSpec& spec = topology_.edges[edge.value];
  Edge& state = edges_[edge.value];
  if (worker.group.value == spec.from) {
    state.producers[worker.rank].slots_in_use = stats.slots_in_use();
    setSlotsInUse(spec);
  }
  Totals& before = state.totals[worker];
  if (before.channel != stats.channel_id()) before = Totals{.channel = stats.channel_id()};
  // A total that shrinks is a worker's bug; it must not make a counter go back.
  if (worker.group.value == spec.to && stats.bytes_read() > before.bytes_read) {
    const uint64_t bytes = stats.bytes_read() - std::exchange(before.bytes_read, stats.bytes_read());
    state.consumers[worker.rank].bytes += bytes;
    metrics_.read.with(nameOf(spec), std::to_string(worker.rank.value)).Increment(static_cast<double>(bytes));
  }
  const auto count = [&](metrics::Counters<1>& family, uint64_t total, uint64_t& counted) {
    if (total > counted)
      family.with(nameOf(spec)).Increment(static_cast<double>(total - std::exchange(counted, total)));
  };
  count(metrics_.stale_dropped, stats.stale_dropped(), before.stale_dropped);
  count(metrics_.read_ahead, stats.read_ahead(), before.read_ahead);
  count(metrics_.reread, stats.reread(), before.reread);
  for (const auto& [reason, total] : stats.discarded()) {
    uint64_t& counted = before.discarded[reason];
    if (total <= counted) continue;
    metrics_.slots_discarded.with(nameOf(spec), reason).Increment(static_cast<double>(total - counted));
    counted = total;
  }
}

void EdgeMonitor::onClosed(EdgeIndex edge) {
  for (auto& [rank, figures] : edges_[edge.value].producers)
    figures.slots_in_use = 0;
  edges_[edge.value].totals.clear();
  setSlotsInUse(topology_.edges[edge.value]);
}

uint32_t EdgeMonitor::Edge::inUse() const {
  uint32_t sum = 0;
  for (const auto& [rank, figures] : producers)
    sum += figures.slots_in_use;
  return sum;
}

v1::GetEdgesResponse EdgeMonitor::report() const {
  v1::GetEdgesResponse response;
  for (size_t index = 0; index < edges_.size(); ++index) {
    const config::EdgeSpec& spec = topology_.edges[index];
    v1::Edge& edge = *response.add_edges();
    edge.set_name(spec.name);
    edge.set_transport(std::string(config::toString(spec.transport)));
    edge.set_transport_reason(spec.transport_reason);
    edge.set_slots(spec.slots);
    edge.set_slots_in_use(edges_[index].inUse());
    uint64_t handoffs = 0;
    uint64_t bytes = 0;
    const auto add = [](Rank rank, const RankFigures& figures, v1::EdgeRank& proto) {
      proto.set_rank(rank.value);
      proto.set_handoffs(figures.handoffs);
      proto.set_bytes(figures.bytes);
      proto.set_slots_in_use(figures.slots_in_use);
    };
    for (const auto& [rank, figures] : edges_[index].producers) {
      handoffs += figures.handoffs;
      bytes += figures.bytes;
      add(rank, figures, *edge.add_producers());
    }
    for (const auto& [rank, figures] : edges_[index].consumers)
      add(rank, figures, *edge.add_consumers());
    edge.set_handoffs(handoffs);
    edge.set_bytes(bytes);
  }
  return response;
}

}  // namespace latentd::supervisor
