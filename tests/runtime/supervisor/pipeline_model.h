#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/supervisor/dispatcher.h"
#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"

namespace latentd::supervisor {

// Workers and channels as the control protocol promises them, in simulated time, with random choices: what each rank
// does next, who fails. Checks the dispatcher's side of the protocol at every command, and keeps accounts of numbers.
class PipelineModel final : public CommandSink {
 public:
  enum class Artifact { kPromised, kData, kAborted };
  struct Options {
    double failure = 0.02;  // of one command of one rank
  };

  PipelineModel(const config::Topology& topology, std::mt19937& random, Options options)
      : topology_(topology), random_(random), options_(options) {
    for (uint32_t edge = 0; edge < topology.edges.size(); ++edge)
      channels_.push_back({});
  }

  void attach(Dispatcher& dispatcher) { dispatcher_ = &dispatcher; }

  void bringUp(uint32_t group) {
    up_.insert(group);
    for (uint32_t rank = 0; rank < topology_.groups[group].ranks(); ++rank)
      workers_[id(group, rank)] = {};
    dispatcher_->groupReady(GroupIndex(group));
    for (uint32_t edge = 0; edge < topology_.edges.size(); ++edge) {
      const config::EdgeSpec& spec = topology_.edges[edge];
      if (up_.count(spec.from) == 0 || up_.count(spec.to) == 0 || channels_[edge].id != 0) continue;
      channels_[edge] = Channel{.id = next_channel_++};
      dispatcher_->edgeOpened(EdgeIndex(edge), ChannelId(channels_[edge].id));
    }
  }

  void kill(uint32_t group) {
    up_.erase(group);
    for (uint32_t rank = 0; rank < topology_.groups[group].ranks(); ++rank)
      workers_.erase(id(group, rank));
    for (uint32_t edge = 0; edge < topology_.edges.size(); ++edge) {
      const config::EdgeSpec& spec = topology_.edges[edge];
      if (spec.from == group || spec.to == group) channels_[edge] = {};
    }
    dispatcher_->groupLost(GroupIndex(group), absl::UnavailableError("killed"));
    dispatcher_->pump();
  }
  bool isUp(uint32_t group) const { return up_.count(group) != 0; }

  // One random worker does one thing it can do; false when none can.
  bool step() {
    std::vector<WorkerId> able;
    for (auto& [worker, state] : workers_) {
      if (canMove(worker, state)) able.push_back(worker);
    }
    if (able.empty()) return false;
    move(able[random_() % able.size()]);
    dispatcher_->pump();
    checkPromises();
    return true;
  }

  // Every number of every open channel has ended, and every consumer rank has let go of it.
  void checkAccounts() const {
    for (uint32_t edge = 0; edge < channels_.size(); ++edge) {
      const Channel& channel = channels_[edge];
      for (const auto& [sequence, artifact] : channel.artifacts)
        CHECK(artifact != Artifact::kPromised);
      const uint32_t ranks = topology_.groups[topology_.edges[edge].to].ranks();
      for (uint64_t sequence = 0; sequence < channel.next; ++sequence) {
        for (uint32_t rank = 0; rank < ranks; ++rank)
          CHECK(channel.released.count({sequence, rank}) == 1);
      }
    }
  }

  // ---- CommandSink
  void send(WorkerId worker, internal::v1::WorkerCommand command) override {
    REQUIRE(workers_.count(worker) == 1);
    WorkerState& state = workers_[worker];
    if (command.has_run_stage()) checkRunStage(worker, command.run_stage());
    state.inbox.push_back(std::move(command));
  }
  Status sendDescriptor(WorkerId, uint64_t, int) override { return absl::OkStatus(); }

  uint64_t commands = 0;

 private:
  struct Command {
    internal::v1::RunStage stage;
    bool started = false;
    bool consumed = false;
    bool cancelled = false;
    int steps_left = 2;
  };
  struct WorkerState {
    std::deque<internal::v1::WorkerCommand> inbox;
    std::deque<Command> queue;
  };
  struct Channel {
    uint32_t id = 0;
    uint64_t next = 0;  // numbers promised so far
    std::map<uint64_t, Artifact> artifacts;
    std::set<std::pair<uint64_t, uint32_t>> released;  // by (number, consumer rank)
    std::map<uint32_t, uint64_t> consumer_next;        // by rank: commands come in order of numbers
  };

  static WorkerId id(uint32_t group, uint32_t rank) { return {GroupIndex(group), Rank(rank)}; }

  // Channels of former epochs are gone: null.
  Channel* find(uint32_t channel_id) {
    for (Channel& channel : channels_) {
      if (channel.id == channel_id) return &channel;
    }
    return nullptr;
  }

  void checkRunStage(WorkerId worker, const internal::v1::RunStage& stage) {
    ++commands;
    for (const auto& ref : stage.outputs()) {
      Channel* channel = find(ref.channel_id());
      REQUIRE(channel != nullptr);
      if (worker.rank.value == 0) {
        // In order, none left out, and never more than the credits.
        REQUIRE(ref.sequence() == channel->next);
        ++channel->next;
        channel->artifacts[ref.sequence()] = Artifact::kPromised;
        const uint32_t edge = static_cast<uint32_t>(channel - channels_.data());
        REQUIRE(outstanding(edge) <= topology_.edges[edge].slots);
      }
    }
    for (const auto& ref : stage.inputs()) {
      Channel* channel = find(ref.channel_id());
      if (channel == nullptr) continue;  // the producer's group is gone: the receive fails
      channel->artifacts.try_emplace(ref.sequence(), Artifact::kPromised);  // its producer's command may follow
      REQUIRE(ref.sequence() >= channel->consumer_next[worker.rank.value]);
      channel->consumer_next[worker.rank.value] = ref.sequence() + 1;
    }
  }

  // What a consumer was told to take a producer was told to make.
  void checkPromises() const {
    for (const Channel& channel : channels_)
      REQUIRE((channel.artifacts.empty() || channel.artifacts.rbegin()->first < channel.next));
  }

  uint32_t outstanding(uint32_t edge) const {
    const Channel& channel = channels_[edge];
    const uint32_t ranks = topology_.groups[topology_.edges[edge].to].ranks();
    uint32_t count = 0;
    for (uint64_t sequence = 0; sequence < channel.next; ++sequence) {
      uint32_t left = ranks;
      for (uint32_t rank = 0; rank < ranks; ++rank)
        left -= channel.released.count({sequence, rank});
      if (left != 0) ++count;
    }
    return count;
  }

  // The front command can go on unless it waits for an input that has not ended yet.
  bool canMove(WorkerId, WorkerState& state) {
    if (!state.inbox.empty()) return true;
    if (state.queue.empty()) return false;
    const Command& command = state.queue.front();
    if (!command.started || command.consumed || command.cancelled) return true;
    return inputsEnded(command);
  }

  bool inputsEnded(const Command& command) {
    for (const auto& ref : command.stage.inputs()) {
      const Channel* channel = find(ref.channel_id());
      if (channel != nullptr && channel->artifacts.at(ref.sequence()) == Artifact::kPromised) return false;
    }
    return true;
  }

  void move(WorkerId worker) {
    WorkerState& state = workers_[worker];
    if (!state.inbox.empty() && (state.queue.empty() || random_() % 2 == 0)) {
      takeCommand(worker, state);
      return;
    }
    if (state.queue.empty()) return takeCommand(worker, state);
    Command& command = state.queue.front();
    if (!command.started) {
      command.started = true;
      internal::v1::StageStarted event;
      event.set_job_id(command.stage.job_id());
      dispatcher_->onStarted(worker, event);
    } else if (command.cancelled) {
      finish(worker, 0, absl::StatusCode::kCancelled);
    } else if (!command.consumed) {
      if (inputsEnded(command)) consume(worker, command);
    } else if (chance(options_.failure)) {
      finish(worker, 0, absl::StatusCode::kInternal);
    } else if (command.steps_left-- > 0) {
      internal::v1::StepProgress event;
      event.set_job_id(command.stage.job_id());
      event.set_step(2 - command.steps_left);
      event.set_steps(2);
      dispatcher_->onProgress(worker, event);
    } else {
      finish(worker, 0, absl::StatusCode::kOk);
    }
  }

  void takeCommand(WorkerId worker, WorkerState& state) {
    const internal::v1::WorkerCommand command = std::move(state.inbox.front());
    state.inbox.pop_front();
    if (command.has_run_stage()) {
      state.queue.push_back({command.run_stage()});
    } else if (command.has_cancel()) {
      for (size_t index = 0; index < state.queue.size(); ++index) {
        if (state.queue[index].stage.job_id() != command.cancel().job_id()) continue;
        if (state.queue[index].started) {
          state.queue[index].cancelled = true;
        } else {
          finish(worker, index, absl::StatusCode::kCancelled);
        }
        break;
      }
    } else if (command.has_discard_refs()) {
      for (const auto& ref : command.discard_refs().refs())
        release(ref, worker.rank.value);
      internal::v1::RefsDiscarded event;
      event.set_request_id(command.discard_refs().request_id());
      dispatcher_->onDiscarded(worker, event);
    } else {
      FAIL("a command that the dispatcher has no business with");
    }
  }

  void consume(WorkerId worker, Command& command) {
    bool lost = false;
    internal::v1::InputsConsumed event;
    event.set_job_id(command.stage.job_id());
    for (const auto& ref : command.stage.inputs()) {
      const Channel* channel = find(ref.channel_id());
      lost = lost || channel == nullptr || channel->artifacts.at(ref.sequence()) == Artifact::kAborted;
      *event.add_refs() = ref;
    }
    if (lost) return finish(worker, 0, absl::StatusCode::kUnavailable);
    command.consumed = true;
    for (const auto& ref : command.stage.inputs())
      release(ref, worker.rank.value);
    dispatcher_->onInputsConsumed(worker, event);
  }

  void release(const internal::v1::ArtifactRef& ref, uint32_t rank) {
    if (Channel* channel = find(ref.channel_id())) channel->released.insert({ref.sequence(), rank});
  }

  void finish(WorkerId worker, size_t index, absl::StatusCode code) {
    WorkerState& state = workers_[worker];
    const Command command = state.queue[index];
    state.queue.erase(state.queue.begin() + static_cast<std::ptrdiff_t>(index));
    for (const auto& ref : command.stage.inputs())
      release(ref, worker.rank.value);
    for (const auto& ref : command.stage.outputs()) {
      Channel* channel = find(ref.channel_id());
      // Replicated producers: rank 0 publishes.
      if (channel == nullptr || worker.rank.value != 0) continue;
      channel->artifacts[ref.sequence()] = code == absl::StatusCode::kOk ? Artifact::kData : Artifact::kAborted;
    }
    if (code == absl::StatusCode::kOk) {
      internal::v1::StageDone event;
      event.set_job_id(command.stage.job_id());
      dispatcher_->onDone(worker, event);
      return;
    }
    internal::v1::StageFailed event;
    event.set_job_id(command.stage.job_id());
    event.mutable_status()->set_code(static_cast<int>(code));
    dispatcher_->onFailed(worker, event);
  }

  bool chance(double probability) { return std::uniform_real_distribution<double>()(random_) < probability; }

  const config::Topology& topology_;
  std::mt19937& random_;
  const Options options_;
  Dispatcher* dispatcher_ = nullptr;
  std::set<uint32_t> up_;
  uint32_t next_channel_ = 1;
  std::vector<Channel> channels_;  // by edge; id 0 while it is down
  std::map<WorkerId, WorkerState> workers_;
};

}  // namespace latentd::supervisor
