#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/worker.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/supervisor/command_sink.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// Told by the plan. Called on the supervisor's loop; onChannelFailed may call the plan back.
class ChannelObserver {
 public:
  virtual ~ChannelObserver() = default;
  virtual void onChannelOpen(EdgeIndex edge, ChannelId channel) = 0;
  // The group cannot serve: a rank of it could not open or retire a channel, or did not in time.
  virtual void onChannelFailed(WorkerId worker, const Status& cause) = 0;
};

// Opens the channel of each edge once both its groups are loaded: first every producer rank listens, then every
// consumer rank connects. When a group is lost, the survivors of its edges retire their channels, and an edge opens
// again, as a new channel, only after all of them have. A producer unlinks its socket when it retires; the plan does
// when it is lost.
// Owner: Fleet. Thread: the supervisor's loop. Pure logic over a CommandSink and a Clock.
// States of an edge: down -> opening producers -> opening consumers -> open -> down (retiring on the surviving side).
// Failure: a rank that reports an error or none in time is told to the observer, once.
class ChannelPlan {
 public:
  // socket_dir: where producers listen.
  ChannelPlan(const config::Topology& topology, const Clock& clock, CommandSink& sink, ChannelObserver& observer,
              std::string socket_dir);

  void groupLoaded(GroupIndex group, Epoch epoch);
  void groupLost(GroupIndex group);
  // The daemon ends: every open channel is retired on both sides, and none opens again.
  void retireAll();

  void onEdgeReady(WorkerId worker, const internal::v1::EdgeReady& event);
  void onEdgeRetired(WorkerId worker, const internal::v1::EdgeRetired& event);

  bool isOpen(EdgeIndex edge) const { return edges_[edge.value].state == State::kOpen; }
  // The edge of a channel that is opening or open; nothing for a former one.
  std::optional<EdgeIndex> edgeOf(ChannelId channel) const;
  bool retiring() const;

  Clock::TimePoint nextDeadline() const;
  void onTimer();

 private:
  enum class State { kDown, kOpeningProducers, kOpeningConsumers, kOpen };
  struct Edge {
    State state = State::kDown;
    ChannelId channel;
    std::vector<std::string> sockets;                     // of the present channel, or of the former one
    std::set<WorkerId> awaited;                           // EdgeReady of the present step
    std::set<std::pair<WorkerId, ChannelId>> retiring;    // EdgeRetired of former channels
    Clock::TimePoint deadline = Clock::TimePoint::max();  // of whatever is awaited
  };

  void openWherePossible();
  void openProducers(EdgeIndex edge);
  void openConsumers(EdgeIndex edge);
  void close(EdgeIndex edge);
  void retire(EdgeIndex edge, size_t group);
  internal::v1::ChannelSpec channelSpec(EdgeIndex edge) const;
  void removeSockets(EdgeIndex edge) const;
  std::vector<WorkerId> workersOf(size_t group) const;

  const config::Topology& topology_;
  const Clock& clock_;
  CommandSink& sink_;
  ChannelObserver& observer_;
  const std::string socket_dir_;
  std::vector<Edge> edges_;  // by edge index
  std::map<GroupIndex, Epoch> loaded_groups_;
  uint32_t next_channel_ = 1;
  bool ending_ = false;
};

}  // namespace latentd::supervisor
