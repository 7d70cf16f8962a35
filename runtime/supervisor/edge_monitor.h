#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/api.pb.h"
#include "proto/worker.pb.h"
#include "runtime/config/topology.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// Figures of the edges, from what workers report: hand-offs one by one, the rest as running totals of each channel. Of
// replicas' edges the metrics have the sums, so that their number does not grow with the square of the replicas.
// Owner: Supervisor. Thread: the supervisor's loop.
class EdgeMonitor {
 public:
  EdgeMonitor(const config::Topology& topology, metrics::EdgeMetrics& metrics);

  void onTransfer(EdgeIndex edge, Rank producer, const internal::v1::TransferDone& transfer);
  void onStats(EdgeIndex edge, WorkerId worker, const internal::v1::EdgeStats& stats);
  // The channel is gone: nothing of it is in use.
  void onClosed(EdgeIndex edge);
  v1::GetEdgesResponse report() const;

 private:
  // What one rank had reported of one channel.
  struct Totals {
    uint32_t channel = 0;
    uint64_t bytes_read = 0;
    uint64_t stale_dropped = 0;
    uint64_t read_ahead = 0;
    uint64_t reread = 0;
    std::map<std::string, uint64_t> discarded;
  };
  struct RankFigures {
    uint64_t handoffs = 0;
    uint64_t bytes = 0;
    uint32_t slots_in_use = 0;
  };
  struct Edge {
    std::map<Rank, RankFigures> producers;
    std::map<Rank, RankFigures> consumers;
    std::map<WorkerId, Totals> totals;
    uint32_t inUse() const;
  };

  // Of the edge in the topology file.
  const std::string& nameOf(const config::EdgeSpec& spec) const;
  void setSlotsInUse(const config::EdgeSpec& spec);

  const config::Topology& topology_;
  metrics::EdgeMetrics& metrics_;
  std::vector<Edge> edges_;  // by edge index
};

}  // namespace latentd::supervisor
