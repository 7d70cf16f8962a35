#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/supervisor/dispatcher.h"
#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

// A dispatcher whose groups are all ready, in simulated time, and what it told and sent.
namespace latentd::supervisor {

inline constexpr std::chrono::milliseconds kStall{1000};

struct RecordingHost : DispatcherHost {
  std::optional<JobSpec> takeNextJob() override {
    if (queue.empty()) return std::nullopt;
    JobSpec spec{queue.front(), {}, stall_timeout, may_restart, may_displace};
    spec.parameters.set_frames(5);
    spec.parameters.set_width(32);
    spec.parameters.set_height(32);
    spec.parameters.set_steps(steps.count(spec.id) == 0 ? 4 : steps.at(spec.id));
    queue.pop_front();
    return spec;
  }
  StatusOr<std::unique_ptr<media::Output>> openOutput(const JobSpec& job) override {
    return outputs.open(
        job.id, job.parameters, [](const Status&) {}, [](const StatusOr<media::OutputResult>&) {});
  }
  void onCommandSent(const JobId&, WorkerId) override {}
  void onStageStarted(const JobId& job, GroupIndex group) override { started.emplace_back(job, group.value); }
  void onStageComputes(const JobId& job, GroupIndex group) override { computing.emplace_back(job, group.value); }
  void onStageProgress(const JobId&, GroupIndex, uint32_t step, uint32_t) override { last_step = step; }
  void onStageDone(const JobId&, GroupIndex, const internal::v1::StageTimings&) override { ++stages_done; }
  void onStageFailed(const JobId&, GroupIndex group, const Status& status) override {
    failures.emplace_back(group.value, status.code());
  }
  void onJobEnded(const JobId& job, StatusOr<media::OutputResult> result) override {
    REQUIRE(ended.count(job) == 0);
    ended[job] = result.ok() ? absl::OkStatus() : result.status();
  }
  void onJobLost(const JobId& job, const Status& cause) override { lost.emplace_back(job, cause); }
  void onJobDisplaced(const JobId& job, const Status& cause) override { displaced.emplace_back(job, cause); }
  void onGroupUnusable(GroupIndex group, const Status& cause) override { unusable.emplace_back(group.value, cause); }
  void onGroupSuspect(GroupIndex group, const Status& met) override { suspect.emplace_back(group.value, met); }

  std::deque<JobId> queue;
  std::map<JobId, uint32_t> steps;  // of those that have not 4
  FakeOutputs outputs;
  std::vector<std::pair<JobId, uint32_t>> started;
  std::vector<std::pair<JobId, uint32_t>> computing;
  uint32_t last_step = 0;
  int stages_done = 0;
  std::vector<std::pair<uint32_t, absl::StatusCode>> failures;
  std::map<JobId, Status> ended;
  std::optional<std::chrono::milliseconds> stall_timeout = kStall;
  bool may_restart = false;
  bool may_displace = true;
  std::vector<std::pair<JobId, Status>> lost;
  std::vector<std::pair<JobId, Status>> displaced;
  std::vector<std::pair<uint32_t, Status>> unusable;
  std::vector<std::pair<uint32_t, Status>> suspect;
};

template <class Host>
struct FixtureWith {
  explicit FixtureWith(const std::vector<uint32_t>& ranks = {1, 1, 1}) : FixtureWith(chainTopology(ranks)) {}
  explicit FixtureWith(config::Topology made) : topology(std::move(made)) {
    topology.deadlines.stall = kStall;
    for (uint32_t edge = 0; edge < topology.edges.size(); ++edge)
      dispatcher.edgeOpened(EdgeIndex(edge), channel(edge));
    for (uint32_t group = 0; group < topology.groups.size(); ++group)
      dispatcher.groupReady(GroupIndex(group));
  }
  static ChannelId channel(uint32_t edge) { return ChannelId(edge + 1); }
  static WorkerId worker(uint32_t group, uint32_t rank = 0) { return {GroupIndex(group), Rank(rank)}; }

  // Also makes the outputs that were asked for, unless makes_outputs is false.
  void pump() {
    dispatcher.pump();
    for (const auto& state : host.outputs.states) {
      if (makes_outputs && std::exchange(state->opened, nullptr)) {
        dispatcher.onOutputOpened(state->job, absl::OkStatus());
      }
    }
  }
  void submit(const JobId& job) {
    host.queue.push_back(job);
    pump();
  }
  void start(uint32_t group, const JobId& job, uint32_t rank = 0) {
    internal::v1::StageStarted event;
    event.set_job_id(job);
    dispatcher.onStarted(worker(group, rank), event);
  }
  void progress(uint32_t group, const JobId& job, uint32_t step, uint32_t steps) {
    internal::v1::StepProgress event;
    event.set_job_id(job);
    event.set_step(step);
    event.set_steps(steps);
    dispatcher.onProgress(worker(group), event);
    pump();
  }
  void consumed(uint32_t group, const JobId& job, uint32_t edge, uint64_t sequence) {
    internal::v1::InputsConsumed event;
    event.set_job_id(job);
    event.add_refs()->set_channel_id(channel(edge).value);
    event.mutable_refs(0)->set_sequence(sequence);
    dispatcher.onInputsConsumed(worker(group), event);
    pump();
  }
  // published: the numbers of artifacts on the edge behind the group.
  void done(uint32_t group, const JobId& job, uint32_t rank = 0, const std::vector<uint64_t>& published = {}) {
    internal::v1::StageDone event;
    event.set_job_id(job);
    for (const uint64_t sequence : published) {
      internal::v1::ArtifactRef& artifact = *event.add_outputs()->mutable_artifact();
      artifact.set_channel_id(channel(group).value);
      artifact.set_sequence(sequence);
    }
    dispatcher.onDone(worker(group, rank), event);
    pump();
  }
  void transferred(uint32_t edge, uint64_t sequence, uint32_t rank = 0) {
    internal::v1::TransferDone event;
    event.mutable_artifact()->set_channel_id(channel(edge).value);
    event.mutable_artifact()->set_sequence(sequence);
    const auto job = dispatcher.jobOf(EdgeIndex(edge), channel(edge), SequenceNumber(sequence));
    if (job) dispatcher.onTransfer(*job, worker(edge, rank), EdgeIndex(edge), event);
    pump();
  }
  void failed(uint32_t group, const JobId& job, absl::StatusCode code, bool recycle = false, uint32_t rank = 0) {
    internal::v1::StageFailed event;
    event.set_job_id(job);
    event.mutable_status()->set_code(static_cast<int>(code));
    event.mutable_status()->set_message("because");
    event.set_recycle(recycle);
    dispatcher.onFailed(worker(group, rank), event);
    pump();
  }
  void outputDone(const JobId& job, uint32_t frames = 5) {
    dispatcher.onOutputDone(job, media::OutputResult{"/spool/" + job, 10, frames});
    pump();
  }
  // "0:run 1:run 2:cancel" of what was sent since the last call.
  std::string sent() {
    std::string text;
    for (const FakeSink::Sent& entry : sink.take()) {
      text += (text.empty() ? "" : " ") + std::to_string(entry.worker.group.value) + ":";
      if (entry.command.has_run_stage()) text += "run " + entry.command.run_stage().job_id();
      if (entry.command.has_cancel()) text += "cancel " + entry.command.cancel().job_id();
      if (entry.command.has_discard_refs())
        text += "discard " + std::to_string(entry.command.discard_refs().refs(0).sequence());
    }
    return text;
  }

  testing::ManualClock clock;
  config::Topology topology;
  FakeSink sink;
  Host host;
  Dispatcher dispatcher{topology, clock, sink, host};
  bool makes_outputs = true;
};
using DispatcherFixture = FixtureWith<RecordingHost>;

}  // namespace latentd::supervisor
