#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/worker.pb.h"
#include "runtime/base/shm_region.h"
#include "runtime/config/replicas.h"
#include "runtime/config/topology.h"
#include "runtime/media/output.h"
#include "runtime/supervisor/command_sink.h"
#include "runtime/supervisor/worker_id.h"
#include "runtime/supervisor/worker_launcher.h"

// Stand-ins for what the supervisor's parts talk to, and topologies for them.
namespace latentd::supervisor {

// Groups "g0", "g1", ... with these rank counts and edges, in pipeline order; the last one emits frames. replicas: of
// each group, 1 where nothing is said.
inline config::Topology madeTopology(const std::vector<uint32_t>& ranks,
                                     const std::vector<std::pair<size_t, size_t>>& edges,
                                     const std::vector<uint32_t>& replicas = {}) {
  using std::chrono::milliseconds;
  config::Topology topology;
  std::vector<size_t> order;
  for (size_t index = 0; index < ranks.size(); ++index) {
    config::GroupSpec group;
    group.name = "g" + std::to_string(index);
    group.stage = "fake";
    group.method = "run";
    group.parallel.dp = index < replicas.size() ? replicas[index] : 1;
    group.devices.resize(ranks[index] * group.parallel.dp);
    topology.groups.push_back(group);
    order.push_back(index);
  }
  for (const auto& [from, to] : edges) {
    config::EdgeSpec edge;
    edge.name = "g" + std::to_string(from) + ".run->g" + std::to_string(to) + ".run";
    edge.from = from;
    edge.to = to;
    topology.edges.push_back(edge);
  }
  config::expandReplicas(order, topology);
  topology.queue = {.length_max = 64, .aging = milliseconds(1000)};
  topology.deadlines = {.load = milliseconds(10000),
                        .warm_up = milliseconds(5000),
                        .job = milliseconds(3600000),
                        .stall = milliseconds(60000),
                        .heartbeat = milliseconds(100),
                        .heartbeat_miss = milliseconds(1000),
                        .shutdown_grace = milliseconds(10000),
                        .channel_progress = milliseconds(2000),
                        .collective = milliseconds(700),
                        .encode = milliseconds(60000)};
  topology.restart = {.backoff_min = milliseconds(100),
                      .backoff_max = milliseconds(1000),
                      .stable_after = milliseconds(60000),
                      .failures_max = 3};
  topology.limits = {.frames_max = 121,
                     .pixels_max = 1920 * 1088,
                     .steps_max = 100,
                     .guidance_max = 30,
                     .fps_max = 120,
                     .prompt_bytes_max = 4096,
                     .jobs_kept = 100,
                     .job_retention = milliseconds(3600000),
                     .in_flight_per_group = 2};
  return topology;
}

// A chain of such groups: "g0" -> "g1" -> ...
inline config::Topology chainTopology(const std::vector<uint32_t>& ranks, const std::vector<uint32_t>& replicas = {}) {
  std::vector<std::pair<size_t, size_t>> edges;
  for (size_t index = 1; index < ranks.size(); ++index)
    edges.emplace_back(index - 1, index);
  return madeTopology(ranks, edges, replicas);
}

// g0 feeds g1 and g2, both feed g3.
inline config::Topology diamondTopology(const std::vector<uint32_t>& replicas = {}) {
  return madeTopology({1, 2, 1, 2}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, replicas);
}

// Keeps what was sent.
class FakeSink : public CommandSink {
 public:
  struct Sent {
    WorkerId worker;
    internal::v1::WorkerCommand command;
  };

  void send(WorkerId worker, internal::v1::WorkerCommand command) override {
    sent.push_back({worker, std::move(command)});
  }
  Status sendDescriptor(WorkerId, uint64_t id, int) override {
    descriptors.push_back(id);
    return descriptor_status;
  }
  // What was sent since the last call.
  std::vector<Sent> take() { return std::exchange(sent, {}); }

  std::vector<Sent> sent;
  std::vector<uint64_t> descriptors;
  Status descriptor_status;
};

// Outputs that complete when the test says so.
class FakeOutputs final : public media::OutputFactory {
 public:
  struct State {
    JobId job;
    uint64_t ring_id = 0;
    uint32_t frames = 0;
    Opened opened;
    Done done;
    bool finished = false;
    bool aborted = false;
    bool open = true;
  };

  StatusOr<std::unique_ptr<media::Output>> open(const JobId& job, const v1::JobParameters& parameters, Opened opened,
                                                Done done) override {
    if (!open_status.ok()) return open_status;
    auto state = std::make_shared<State>();
    state->job = job;
    state->ring_id = next_ring_++;
    state->frames = parameters.frames();
    state->opened = std::move(opened);
    state->done = std::move(done);
    states.push_back(state);
    return std::unique_ptr<media::Output>(std::make_unique<Handle>(state));
  }
  void remove(const JobId& job) override { removed.push_back(job); }

  State* find(const JobId& job) {
    for (const auto& state : states) {
      if (state->job == job) return state.get();
    }
    return nullptr;
  }

  std::vector<std::shared_ptr<State>> states;
  std::vector<JobId> removed;
  Status open_status;

 private:
  class Handle final : public media::Output {
   public:
    explicit Handle(std::shared_ptr<State> state) : state_(std::move(state)) {}
    ~Handle() override { state_->open = false; }
    int ringFd() const override { return 0; }
    uint64_t ringId() const override { return state_->ring_id; }
    void finish() override { state_->finished = true; }
    void abort(const Status&) override { state_->aborted = true; }

   private:
    std::shared_ptr<State> state_;
  };
  uint64_t next_ring_ = 1;
};

// Processes that exist only as numbers; the test ends them.
class FakeLauncher final : public WorkerLauncher {
 public:
  Status launch(WorkerId worker, Epoch epoch) override {
    ++launches;
    if (!launch_status.ok()) return launch_status;
    running[worker] = epoch;
    return absl::OkStatus();
  }
  void kill(WorkerId worker) override { killed.push_back(worker); }
  Status sendDescriptor(WorkerId, uint64_t id, int fd) override {
    LATENTD_ASSIGN_OR_RETURN(descriptors[id], duplicateFd(fd));
    return absl::OkStatus();
  }
  pid_t pid(WorkerId worker) const override {
    return running.count(worker) != 0 ? static_cast<pid_t>(100 * (worker.group.value + 1) + worker.rank.value) : -1;
  }

  std::map<uint64_t, UniqueFd> descriptors;  // the last of each id
  std::map<WorkerId, Epoch> running;
  std::vector<WorkerId> killed;
  Status launch_status;
  int launches = 0;
};

}  // namespace latentd::supervisor
