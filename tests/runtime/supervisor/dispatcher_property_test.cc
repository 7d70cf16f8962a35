// Random jobs, cancels, failures and deaths against workers that keep the protocol.
#include <map>
#include <random>
#include <set>

#include "runtime/supervisor/limits.h"
#include "tests/runtime/supervisor/pipeline_model.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::supervisor {
namespace {

struct Host final : DispatcherHost {
  std::optional<JobSpec> takeNextJob() override {
    if (queue.empty()) return std::nullopt;
    JobSpec spec{queue.front(), {}, std::chrono::hours(1000)};
    spec.parameters.set_frames(1);
    queue.pop_front();
    // Every other job may restart once.
    spec.may_restart = spec.id.back() % 2 == 0 && restarted.count(spec.id) == 0;
    spec.may_displace = true;
    running.insert(spec.id);
    admissions[spec.id] = next_admission++;
    return spec;
  }
  StatusOr<std::unique_ptr<media::Output>> openOutput(const JobSpec& job) override {
    return outputs.open(
        job.id, job.parameters, [](const Status&) {}, [](const StatusOr<media::OutputResult>&) {});
  }
  // Every worker gets jobs in the order in which they left the queue, whatever came back to it meanwhile: so no two of
  // them wait for each other's slots. Behind replicas, where no join is ahead, one may overtake another.
  void onCommandSent(const JobId& job, WorkerId worker) override {
    ++sent_to[worker.group];
    if (unordered.count(worker.group) != 0) return;
    uint64_t& last = last_sent[worker];
    REQUIRE(admissions.at(job) > last);
    last = admissions.at(job);
  }
  void onStageStarted(const JobId&, GroupIndex) override {}
  void onStageComputes(const JobId&, GroupIndex) override {}
  void onStageProgress(const JobId&, GroupIndex, uint32_t, uint32_t) override {}
  void onStageDone(const JobId&, GroupIndex, const internal::v1::StageTimings&) override {}
  void onStageFailed(const JobId&, GroupIndex, const Status&) override {}
  void onJobEnded(const JobId& job, StatusOr<media::OutputResult> result) override {
    REQUIRE(running.erase(job) == 1);
    const Status status = result.ok() ? absl::OkStatus() : result.status();
    REQUIRE(ended.emplace(job, status).second);
    // CANCELLED only for those that were asked to; a failure may have come first.
    CHECK((status.code() != absl::StatusCode::kCancelled || cancelled.count(job) != 0));
  }
  void onJobLost(const JobId& job, const Status&) override {
    REQUIRE(running.erase(job) == 1);
    REQUIRE(restarted.insert(job).second);
    queue.push_front(job);
  }
  void onJobDisplaced(const JobId& job, const Status&) override {
    REQUIRE(running.erase(job) == 1);
    queue.push_front(job);
  }
  void onGroupUnusable(GroupIndex, const Status&) override {}
  void onGroupSuspect(GroupIndex, const Status&) override {}

  std::deque<JobId> queue;
  FakeOutputs outputs;
  uint64_t next_admission = 1;
  std::map<JobId, uint64_t> admissions;  // of its last run
  std::map<WorkerId, uint64_t> last_sent;
  std::map<GroupIndex, uint64_t> sent_to;
  std::set<GroupIndex> unordered;
  std::set<JobId> running;
  std::set<JobId> cancelled;
  std::set<JobId> restarted;
  std::map<JobId, Status> ended;
};

class Simulation {
 public:
  Simulation(config::Topology topology, uint32_t seed)
      : topology_(std::move(topology)),
        random_(seed),
        model_(topology_, random_, {}),
        dispatcher_(topology_, clock_, model_, host_) {
    model_.attach(dispatcher_);
    bool behind_replicas = false;
    for (const StageShape& shape : shapesOf(topology_)) {
      if (behind_replicas && !shape.before_join) host_.unordered.insert(shape.groups.begin(), shape.groups.end());
      behind_replicas = behind_replicas || shape.groups.size() > 1;
    }
    for (uint32_t group = 0; group < topology_.groups.size(); ++group)
      model_.bringUp(group);
  }

  void run(int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      const uint32_t choice = random_() % 100;
      if (choice < 8) submit();
      if (choice >= 8 && choice < 11) cancelOne();
      if (choice == 11 && random_() % 4 == 0) killOne();
      if (choice >= 12 && choice < 16) reviveOne();
      finishOutputs();
      model_.step();
      if (choice >= 90) passTime();
    }
  }

  // Everything that was submitted ends, and as many new jobs as all credits allow still get through.
  void settle() {
    for (int round = 0; round < 3; ++round) {
      for (uint32_t group = 0; group < topology_.groups.size(); ++group) {
        if (!model_.isUp(group)) model_.bringUp(group);
      }
      dispatcher_.pump();
      do {
        finishOutputs();
        passTime();
      } while (model_.step());
      passTime();
      CHECK(host_.queue.empty());
      CHECK(host_.running.empty());
      CHECK(dispatcher_.running() == 0);
      CHECK(host_.ended.size() == static_cast<size_t>(submitted_));
      for (const auto& output : host_.outputs.states)
        CHECK(!output->open);
      model_.checkAccounts();
      for (int job = 0; job < 8; ++job)
        submit();
    }
  }

  // What each replica got of its stage's commands, at least.
  double smallestShare() const {
    double smallest = 1;
    for (const config::StageSpec& stage : topology_.stages) {
      double sum = 0;
      double least = 1e9;
      for (const size_t group : stage.groups) {
        const auto sent = host_.sent_to.find(GroupIndex(static_cast<uint32_t>(group)));
        const double count = sent == host_.sent_to.end() ? 0 : static_cast<double>(sent->second);
        sum += count / topology_.groups[group].ranks();
        least = std::min(least, count / topology_.groups[group].ranks());
      }
      smallest = std::min(smallest, least * static_cast<double>(stage.groups.size()) / sum);
    }
    return smallest;
  }
  size_t succeeded() const {
    size_t count = 0;
    for (const auto& [job, status] : host_.ended)
      count += status.ok() ? 1 : 0;
    return count;
  }
  size_t cancelled() const { return host_.cancelled.size(); }
  size_t ended() const { return host_.ended.size(); }

 private:
  void submit() {
    if (host_.queue.size() > 20) return;
    host_.queue.push_back("job" + std::to_string(submitted_++));
    dispatcher_.pump();
  }
  void cancelOne() {
    if (host_.running.empty()) return;
    const auto victim = std::next(host_.running.begin(), random_() % host_.running.size());
    const JobId job = *victim;
    const bool repeated = !host_.cancelled.insert(job).second;
    const bool first = dispatcher_.end(job, absl::CancelledError("asked"));
    CHECK((!repeated || !first));
    dispatcher_.pump();
  }
  void killOne() {
    const uint32_t group = random_() % topology_.groups.size();
    if (model_.isUp(group)) model_.kill(group);
  }
  void reviveOne() {
    const uint32_t group = random_() % topology_.groups.size();
    if (!model_.isUp(group)) model_.bringUp(group);
    dispatcher_.pump();
  }
  // Enough for failures that wait for their cause, too little for stalls.
  void passTime() {
    clock_.advance(kCauseTimeout);
    dispatcher_.onTimer();
    dispatcher_.pump();
  }
  // Once, sooner or later, and perhaps when its job has ended; some of them cannot be opened.
  void openOutput(FakeOutputs::State& output) {
    if (!output.opened || (!output.finished && random_() % 4 != 0)) return;
    output.opened = nullptr;
    if (output.finished || random_() % 16 != 0) {
      dispatcher_.onOutputOpened(output.job, absl::OkStatus());
    } else {
      output.frames = 0;
      dispatcher_.onOutputOpened(output.job, absl::ResourceExhaustedError("spool full"));
    }
    dispatcher_.pump();
  }
  void finishOutputs() {
    for (size_t index = outputs_done_; index < host_.outputs.states.size(); ++index) {
      FakeOutputs::State& output = *host_.outputs.states[index];
      openOutput(output);
      if (output.finished && !output.aborted && output.frames != 0) {
        output.frames = 0;
        dispatcher_.onOutputDone(output.job, media::OutputResult{"/spool", 1, 1});
        dispatcher_.pump();
      }
    }
    while (outputs_done_ < host_.outputs.states.size() && !host_.outputs.states[outputs_done_]->open)
      ++outputs_done_;
  }

  testing::ManualClock clock_;
  config::Topology topology_;
  std::mt19937 random_;
  Host host_;
  PipelineModel model_;
  Dispatcher dispatcher_;
  int submitted_ = 0;
  size_t outputs_done_ = 0;
};

void explore(const std::function<config::Topology()>& topology, uint32_t first_seed, uint32_t seeds, int turns) {
  size_t succeeded = 0;
  size_t cancelled = 0;
  size_t ended = 0;
  for (uint32_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    CAPTURE(seed);
    Simulation simulation(topology(), seed);
    simulation.run(turns);
    simulation.settle();
    CHECK(simulation.smallestShare() > 0.25);  // deaths cost it some
    succeeded += simulation.succeeded();
    cancelled += simulation.cancelled();
    ended += simulation.ended();
  }
  // The simulation itself must have done something of each kind.
  CHECK(succeeded > ended / 10);
  CHECK(cancelled > 0);
  CHECK(ended > succeeded + cancelled);
}

TEST_CASE("dispatcher: every job ends once, no credit and no number is lost, order is kept", "[supervisor][property]") {
  explore([] { return chainTopology({1, 1, 1}); }, 1, 40, 1500);
  explore([] { return chainTopology({2, 3, 1, 2}); }, 1000, 20, 1500);
  explore([] { return diamondTopology(); }, 2000, 20, 1500);
}

// Replicas everywhere, and edges that hold one artifact: where two jobs could wait for each other, they would.
std::vector<config::Topology> replicated() {
  const std::vector<std::pair<size_t, size_t>> deep_join{{0, 1}, {1, 2}, {1, 3}, {2, 4}, {3, 4}, {4, 5}};
  std::vector<config::Topology> topologies{
      chainTopology({1, 1, 1}, {1, 2, 1}),
      chainTopology({2, 1, 2, 1}, {2, 3, 1, 2}),
      diamondTopology({2, 2, 1, 2}),
      diamondTopology({1, 2, 3, 1}),
      madeTopology({1, 1, 1, 1, 1, 1}, deep_join, {2, 2, 2, 2, 1, 2}),
      madeTopology({1, 1, 1, 1, 1, 1}, deep_join, {2, 1, 1, 1, 2, 1}),
  };
  for (config::Topology& topology : topologies) {
    for (config::EdgeSpec& edge : topology.edges)
      edge.slots = 1;
  }
  topologies.push_back(chainTopology({1, 1, 1}, {2, 2, 2}));
  return topologies;
}

TEST_CASE("dispatcher: the same with replicas", "[supervisor][property][replica]") {
  uint32_t first_seed = 3000;
  for (const config::Topology& topology : replicated()) {
    CAPTURE(topology.groups.size());
    explore([&] { return topology; }, first_seed, 10, 1500);
    first_seed += 100;
  }
}

TEST_CASE("dispatcher: the same with replicas for many more seeds", "[.][supervisor][property][replica]") {
  uint32_t first_seed = 40000;
  for (const config::Topology& topology : replicated()) {
    explore([&] { return topology; }, first_seed, 300, 4000);
    first_seed += 10000;
  }
}

TEST_CASE("dispatcher: the same for many more seeds", "[.][supervisor][property]") {
  explore([] { return chainTopology({1, 1, 1}); }, 10000, 1000, 4000);
  explore([] { return chainTopology({2, 3, 1, 2}); }, 20000, 500, 4000);
  explore([] { return diamondTopology(); }, 30000, 500, 4000);
}

}  // namespace
}  // namespace latentd::supervisor
