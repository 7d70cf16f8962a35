// Which job comes before which, when some are put back into the queue.
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/supervisor/dispatcher.h"
#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

// A queue whose order never changes: what comes back is as far in front as it was.
struct Host final : DispatcherHost {
  std::optional<JobSpec> takeNextJob() override {
    if (queue.empty()) return std::nullopt;
    JobSpec spec{.id = *queue.begin(), .may_displace = true};
    spec.parameters.set_frames(5);
    queue.erase(queue.begin());
    return spec;
  }
  StatusOr<std::unique_ptr<media::Output>> openOutput(const JobSpec& job) override {
    return outputs.open(job.id, job.parameters, [](const StatusOr<media::OutputResult>&) {});
  }
  void onCommandSent(const JobId& job, WorkerId worker) override { sent[worker.group.value] += job; }
  void onStageStarted(const JobId&, GroupIndex) override {}
  void onStageComputes(const JobId&, GroupIndex) override {}
  void onStageProgress(const JobId&, GroupIndex, uint32_t, uint32_t) override {}
  void onStageDone(const JobId&, GroupIndex, const wire::StageTimings&) override {}
  void onStageFailed(const JobId&, GroupIndex, const Status&) override {}
  void onJobEnded(const JobId& job, StatusOr<media::OutputResult> result) override {
    (result.ok() ? succeeded : failed) += job;
  }
  void onJobLost(const JobId&, const Status&) override { FAIL("no job may restart"); }
  void onJobDisplaced(const JobId& job, const Status&) override {
    displaced += job;
    queue.insert(job);
  }
  void onGroupUnusable(GroupIndex, const Status&) override {}
  void onGroupSuspect(GroupIndex, const Status&) override {}

  std::set<JobId> queue;
  FakeOutputs outputs;
  std::map<uint32_t, std::string> sent;  // jobs in order, by group
  std::string succeeded, failed, displaced;
};

struct Fixture {
  Fixture() {
    topology.limits.in_flight_per_group = 1;
    for (uint32_t edge = 0; edge < topology.edges.size(); ++edge)
      dispatcher.edgeOpened(EdgeIndex(edge), ChannelId(edge + 1));
    for (uint32_t group = 0; group < topology.groups.size(); ++group)
      dispatcher.groupReady(GroupIndex(group));
  }
  void start(uint32_t group, const JobId& job) {
    wire::StageStarted started;
    started.set_job_id(job);
    dispatcher.onStarted({GroupIndex(group), Rank(0)}, started);
  }
  void done(uint32_t group, const JobId& job) {
    wire::StageDone event;
    event.set_job_id(job);
    dispatcher.onDone({GroupIndex(group), Rank(0)}, event);
    dispatcher.pump();
  }
  void cancelled(uint32_t group, const JobId& job) {
    wire::StageFailed event;
    event.set_job_id(job);
    event.mutable_status()->set_code(static_cast<int>(absl::StatusCode::kCancelled));
    dispatcher.onFailed({GroupIndex(group), Rank(0)}, event);
    dispatcher.pump();
  }
  void consumed(uint32_t group, const JobId& job) {
    wire::InputsConsumed event;
    event.set_job_id(job);
    for (const FakeSink::Sent& entry : sink.sent) {
      const wire::RunStage& stage = entry.command.run_stage();
      if (entry.worker.group.value != group || stage.job_id() != job) continue;
      *event.mutable_refs() = stage.inputs();
    }
    dispatcher.onInputsConsumed({GroupIndex(group), Rank(0)}, event);
    dispatcher.pump();
  }
  // Every worker does what it has, the last group's output included, until nothing is left.
  void finishAll() {
    for (int round = 0; round < 100 && dispatcher.running() > 0; ++round) {
      for (uint32_t group = 0; group < 3; ++group) {
        for (const JobId& job : dispatcher.jobs()) {
          start(group, job);
          done(group, job);
        }
      }
      for (const JobId& job : dispatcher.jobs()) {
        dispatcher.onOutputDone(job, media::OutputResult{"/spool/" + job, 10, 5});
        dispatcher.pump();
      }
    }
  }

  testing::ManualClock clock;
  config::Topology topology = chainTopology({1, 1, 1});
  FakeSink sink;
  Host host;
  Dispatcher dispatcher{topology, clock, sink, host};
};

}  // namespace

TEST_CASE("dispatcher: a displaced job is overtaken by what was in earlier stages, and by nothing from the queue",
          "[supervisor]") {
  Fixture fixture;
  fixture.host.queue = {"a", "b", "c", "d", "e", "f"};
  fixture.dispatcher.pump();
  fixture.start(2, "a");
  for (const char* job : {"a", "b", "c"}) {
    fixture.done(0, job);
    fixture.done(1, job);
    if (job[0] == 'a') fixture.consumed(2, "a");
  }
  // a is in the last group; b and c fill its slots; d is in the first group, e and f are queued.
  CHECK(fixture.host.sent == std::map<uint32_t, std::string>{{0, "abcd"}, {1, "abc"}, {2, "a"}});
  CHECK(fixture.dispatcher.waitReason("b", 2) == v1::WAIT_REASON_GROUP_BUSY);
  CHECK(fixture.dispatcher.waitReason("d", 1) == v1::WAIT_REASON_EDGE_FULL);
  fixture.dispatcher.groupLost(GroupIndex(2), absl::UnavailableError("g2 died"));
  fixture.dispatcher.pump();
  CHECK(fixture.host.failed == "a");
  CHECK((fixture.host.displaced == "bc" || fixture.host.displaced == "cb"));
  CHECK(fixture.dispatcher.waitReason("d", 1) == v1::WAIT_REASON_GROUP_NOT_READY);
  CHECK(fixture.dispatcher.waitReason("d", 2) == v1::WAIT_REASON_GROUP_NOT_READY);
  fixture.dispatcher.edgeOpened(EdgeIndex(1), ChannelId(9));
  fixture.dispatcher.groupReady(GroupIndex(2));
  fixture.dispatcher.pump();
  CHECK(fixture.dispatcher.waitReason("d", 1) == v1::WAIT_REASON_UNSPECIFIED);
  fixture.finishAll();
  // d goes through first: it was further than those that begin again. All groups see all jobs in one order, so that
  // none can hold a slot that another one waits for.
  CHECK(fixture.host.sent == std::map<uint32_t, std::string>{{0, "abcdbcef"}, {1, "abcdbcef"}, {2, "adbcef"}});
  CHECK(fixture.host.succeeded == "dbcef");
}

}  // namespace latentd::supervisor
