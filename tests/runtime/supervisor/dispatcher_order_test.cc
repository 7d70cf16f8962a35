// Which job comes before which, when some are put back into the queue.
#include <map>
#include <set>
#include <string>

#include "tests/runtime/supervisor/dispatcher_fixture.h"

namespace latentd::supervisor {
namespace {

// A queue whose order never changes: what comes back is as far in front as it was.
struct Host final : RecordingHost {
  std::optional<JobSpec> takeNextJob() override {
    if (waiting.empty()) return std::nullopt;
    queue.assign(1, *waiting.begin());
    waiting.erase(waiting.begin());
    return RecordingHost::takeNextJob();
  }
  void onCommandSent(const JobId& job, WorkerId worker) override { sent[worker.group.value] += job; }
  void onJobEnded(const JobId& job, StatusOr<media::OutputResult> result) override {
    (result.ok() ? succeeded : failed) += job;
  }
  void onJobLost(const JobId&, const Status&) override { FAIL("no job may restart"); }
  void onJobDisplaced(const JobId& job, const Status&) override {
    put_back += job;
    waiting.insert(job);
  }

  std::set<JobId> waiting;
  std::map<uint32_t, std::string> sent;  // jobs in order, by group
  std::string succeeded, failed, put_back;
};

config::Topology oneCommandEach() {
  config::Topology topology = chainTopology({1, 1, 1});
  topology.limits.in_flight_per_group = 1;
  return topology;
}

struct Fixture : FixtureWith<Host> {
  Fixture() : FixtureWith(oneCommandEach()) {}
  // Every worker does what it has, the last group's output included, until nothing is left.
  void finishAll() {
    for (int round = 0; round < 100 && dispatcher.running() > 0; ++round) {
      for (uint32_t group = 0; group < 3; ++group) {
        for (const JobId& job : dispatcher.jobs()) {
          start(group, job);
          done(group, job);
        }
      }
      for (const JobId& job : dispatcher.jobs())
        outputDone(job);
    }
  }
};

}  // namespace

TEST_CASE("dispatcher: a displaced job is overtaken by what was in earlier stages, and by nothing from the queue",
          "[supervisor]") {
  Fixture fixture;
  fixture.host.waiting = {"a", "b", "c", "d", "e", "f"};
  fixture.dispatcher.pump();
  fixture.start(2, "a");
  for (const char* job : {"a", "b", "c"}) {
    fixture.done(0, job);
    fixture.done(1, job);
    if (job[0] == 'a') fixture.consumed(2, "a", 1, 0);
  }
  // a is in the last group; b and c fill its slots; d is in the first group, e and f are queued.
  CHECK(fixture.host.sent == std::map<uint32_t, std::string>{{0, "abcd"}, {1, "abc"}, {2, "a"}});
  CHECK(fixture.dispatcher.waitReason("b", 2) == v1::WAIT_REASON_GROUP_BUSY);
  CHECK(fixture.dispatcher.waitReason("d", 1) == v1::WAIT_REASON_EDGE_FULL);
  fixture.dispatcher.groupLost(GroupIndex(2), absl::UnavailableError("g2 died"));
  fixture.dispatcher.pump();
  CHECK(fixture.host.failed == "a");
  CHECK((fixture.host.put_back == "bc" || fixture.host.put_back == "cb"));
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
