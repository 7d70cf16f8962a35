#include "runtime/supervisor/channel_plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/check.h"

namespace latentd::supervisor {

namespace wire = internal::v1;

ChannelPlan::ChannelPlan(const config::Topology& topology, const Clock& clock, CommandSink& sink,
                         ChannelObserver& observer, std::string socket_dir)
    : topology_(topology),
      clock_(clock),
      sink_(sink),
      observer_(observer),
      socket_dir_(std::move(socket_dir)),
      edges_(topology.edges.size()) {}

void ChannelPlan::groupLoaded(GroupIndex group, Epoch epoch) {
  loaded_groups_[group] = epoch;
  openWherePossible();
}

void ChannelPlan::groupLost(GroupIndex group) {
  loaded_groups_.erase(group);
  for (uint32_t index = 0; index < edges_.size(); ++index) {
    const config::EdgeSpec& spec = topology_.edges[index];
    if (spec.from != group.value && spec.to != group.value) continue;
    close(EdgeIndex(index));
    // What the lost side was still to retire went with its processes.
    std::erase_if(edges_[index].retiring, [&](const auto& entry) { return entry.first.group == group; });
    if (spec.from == group.value) removeSockets(EdgeIndex(index));
  }
  openWherePossible();
}

void ChannelPlan::retireAll() {
  ending_ = true;
  for (uint32_t index = 0; index < edges_.size(); ++index)
    close(EdgeIndex(index));
}

void ChannelPlan::close(EdgeIndex edge) {
  Edge& state = edges_[edge.value];
  if (state.state == State::kDown) return;
  for (const size_t group : {topology_.edges[edge.value].from, topology_.edges[edge.value].to}) {
    // Consumers that were not told to open hold nothing.
    const bool told = group == topology_.edges[edge.value].from || state.state != State::kOpeningProducers;
    if (told && loaded_groups_.count(GroupIndex(static_cast<uint32_t>(group))) != 0) retire(edge, group);
  }
  state.state = State::kDown;
  state.channel = ChannelId();
  state.awaited.clear();
}

void ChannelPlan::retire(EdgeIndex edge, size_t group) {
  Edge& state = edges_[edge.value];
  wire::WorkerCommand command;
  command.mutable_retire_edge()->set_channel_id(state.channel.value);
  for (const WorkerId worker : workersOf(group)) {
    state.retiring.emplace(worker, state.channel);
    sink_.send(worker, command);
  }
  state.deadline = clock_.now() + topology_.deadlines.channel_progress;
}

void ChannelPlan::openWherePossible() {
  if (ending_) return;
  for (uint32_t index = 0; index < edges_.size(); ++index) {
    const config::EdgeSpec& spec = topology_.edges[index];
    const Edge& edge = edges_[index];
    const bool both = loaded_groups_.count(GroupIndex(static_cast<uint32_t>(spec.from))) != 0 &&
                      loaded_groups_.count(GroupIndex(static_cast<uint32_t>(spec.to))) != 0;
    if (both && edge.state == State::kDown && edge.retiring.empty()) openProducers(EdgeIndex(index));
  }
}

wire::ChannelSpec ChannelPlan::channelSpec(EdgeIndex edge) const {
  const config::EdgeSpec& spec = topology_.edges[edge.value];
  wire::ChannelSpec channel;
  channel.set_channel_id(edges_[edge.value].channel.value);
  channel.set_edge(spec.name);
  channel.set_producer_epoch(loaded_groups_.at(GroupIndex(static_cast<uint32_t>(spec.from))).value);
  channel.set_consumer_epoch(loaded_groups_.at(GroupIndex(static_cast<uint32_t>(spec.to))).value);
  channel.set_producer_ranks(topology_.groups[spec.from].ranks());
  channel.set_consumer_ranks(topology_.groups[spec.to].ranks());
  if (spec.producer_shard_dim) channel.set_producer_shard_dim(*spec.producer_shard_dim);
  if (spec.consumer_shard_dim) channel.set_consumer_shard_dim(*spec.consumer_shard_dim);
  channel.set_producer_tokens(static_cast<wire::TokenCut>(spec.tokens.producer));
  channel.set_consumer_tokens(static_cast<wire::TokenCut>(spec.tokens.consumer));
  channel.set_transport(std::string(config::toString(spec.transport)));
  channel.set_slots(spec.slots);
  channel.set_profiles_max(spec.profiles_max);
  channel.set_unpooled_bytes_max(spec.unpooled_bytes_max);
  channel.set_progress_timeout_ms(static_cast<uint32_t>(topology_.deadlines.channel_progress.count()));
  return channel;
}

void ChannelPlan::removeSockets(EdgeIndex edge) const {
  for (const std::string& path : edges_[edge.value].sockets)
    unlink(path.c_str());  // a producer that was lost before it listened left none
}

std::vector<WorkerId> ChannelPlan::workersOf(size_t group) const {
  std::vector<WorkerId> workers;
  for (uint32_t rank = 0; rank < topology_.groups[group].ranks(); ++rank) {
    workers.push_back({GroupIndex(static_cast<uint32_t>(group)), Rank(rank)});
  }
  return workers;
}

void ChannelPlan::openProducers(EdgeIndex edge) {
  Edge& state = edges_[edge.value];
  // Once more: when its group was lost, a producer that was told to listen may have been about to.
  removeSockets(edge);
  state.sockets.clear();
  state.state = State::kOpeningProducers;
  state.channel = ChannelId(next_channel_++);
  state.deadline = clock_.now() + topology_.deadlines.channel_progress;
  for (const WorkerId worker : workersOf(topology_.edges[edge.value].from)) {
    wire::WorkerCommand command;
    *command.mutable_open_producer()->mutable_channel() = channelSpec(edge);
    state.sockets.push_back(fmt::format("{}/c{}-{}.sock", socket_dir_, state.channel.value, worker.rank.value));
    command.mutable_open_producer()->set_socket_path(state.sockets.back());
    state.awaited.insert(worker);
    sink_.send(worker, command);
  }
}

void ChannelPlan::openConsumers(EdgeIndex edge) {
  Edge& state = edges_[edge.value];
  const config::EdgeSpec& spec = topology_.edges[edge.value];
  state.state = State::kOpeningConsumers;
  state.deadline = clock_.now() + topology_.deadlines.channel_progress;
  wire::WorkerCommand command;
  *command.mutable_open_consumer()->mutable_channel() = channelSpec(edge);
  command.mutable_open_consumer()->mutable_socket_paths()->Add(state.sockets.begin(), state.sockets.end());
  for (const WorkerId worker : workersOf(spec.to)) {
    state.awaited.insert(worker);
    sink_.send(worker, command);
  }
}

void ChannelPlan::onEdgeReady(WorkerId worker, const wire::EdgeReady& event) {
  const std::optional<EdgeIndex> edge = edgeOf(ChannelId(event.channel_id()));
  if (!edge) return;
  Edge& state = edges_[edge->value];
  if (state.awaited.erase(worker) == 0) return;
  if (event.status().code() != 0) {
    observer_.onChannelFailed(worker,
                              makeStatus(static_cast<absl::StatusCode>(event.status().code()),
                                         fmt::format("edge {} does not open: {}", topology_.edges[edge->value].name,
                                                     event.status().message())));
    return;
  }
  if (!state.awaited.empty()) return;
  if (state.state == State::kOpeningProducers) {
    openConsumers(*edge);
    return;
  }
  LATENTD_CHECK(state.state == State::kOpeningConsumers, "an open edge awaits nobody");
  state.state = State::kOpen;
  state.deadline = Clock::TimePoint::max();
  observer_.onChannelOpen(*edge, state.channel);
}

void ChannelPlan::onEdgeRetired(WorkerId worker, const wire::EdgeRetired& event) {
  for (Edge& edge : edges_)
    edge.retiring.erase({worker, ChannelId(event.channel_id())});
  openWherePossible();
}

std::optional<EdgeIndex> ChannelPlan::edgeOf(ChannelId channel) const {
  if (channel.value == 0) return std::nullopt;
  for (uint32_t index = 0; index < edges_.size(); ++index) {
    if (edges_[index].channel == channel) return EdgeIndex(index);
  }
  return std::nullopt;
}

bool ChannelPlan::retiring() const {
  return std::any_of(edges_.begin(), edges_.end(), [](const Edge& edge) { return !edge.retiring.empty(); });
}

Clock::TimePoint ChannelPlan::nextDeadline() const {
  Clock::TimePoint next = Clock::TimePoint::max();
  for (const Edge& edge : edges_) {
    if (!edge.awaited.empty() || !edge.retiring.empty()) next = std::min(next, edge.deadline);
  }
  return next;
}

void ChannelPlan::onTimer() {
  std::map<WorkerId, Status> late;
  for (uint32_t index = 0; index < edges_.size(); ++index) {
    Edge& edge = edges_[index];
    if (edge.deadline > clock_.now()) continue;
    edge.deadline = Clock::TimePoint::max();  // told once
    const auto tell = [&](WorkerId worker, std::string_view what) {
      late.emplace(worker,
                   absl::DeadlineExceededError(fmt::format(
                       "edge {} was not {} within {:g} s (deadlines.channel_progress)", topology_.edges[index].name,
                       what, std::chrono::duration<double>(topology_.deadlines.channel_progress).count())));
    };
    for (const WorkerId worker : edge.awaited)
      tell(worker, "opened");
    for (const auto& [worker, channel] : edge.retiring)
      tell(worker, "retired");
  }
  for (const auto& [worker, cause] : late)
    observer_.onChannelFailed(worker, cause);
}

}  // namespace latentd::supervisor
