#include "runtime/supervisor/supervisor.h"

#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "tests/runtime/supervisor/harness.h"
#include "tests/support/catch.h"
#include "tests/support/child_test_case.h"
#include "tests/support/self_path.h"
#include "tests/support/slack.h"

namespace latentd::supervisor {
namespace {

using std::chrono::milliseconds;
using testing::siblingBinary;
using testing::withSlack;

std::string fakeWorker() { return siblingBinary("fake_worker"); }

config::Topology fastTopology(const std::vector<uint32_t>& ranks, const std::vector<uint32_t>& replicas = {}) {
  config::Topology topology = chainTopology(ranks, replicas);
  topology.deadlines.shutdown_grace = milliseconds(5000);
  topology.restart.backoff_min = milliseconds(20);
  topology.log.level = "info";
  return topology;
}

bool contains(const std::string& text, std::initializer_list<const char*> parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

bool exited(const UniqueFd& pid_fd) {
  pollfd entry{pid_fd.get(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

TEST_CASE("supervisor: jobs run through real processes, in order, and the end is orderly", "[supervisor]") {
  Harness harness(fastTopology({1, 2, 1}), fakeWorker());
  REQUIRE(harness.waitReady());
  CHECK(harness.service().live().ok());
  std::vector<JobId> jobs;
  for (int count = 0; count < 20; ++count)
    jobs.push_back(harness.submit());
  for (const JobId& job : jobs) {
    const v1::Job ended = harness.waitJob(job);
    CHECK(ended.state() == v1::JOB_STATE_SUCCEEDED);
    for (const v1::StageProgress& stage : ended.stages())
      CHECK(stage.has_finish_time());
  }
  const auto listed = harness.service().list({});
  REQUIRE(listed.ok());
  CHECK(listed->jobs_size() == 20);
  const v1::Topology topology = harness.service().topology();
  CHECK(topology.groups_size() == 3);
  CHECK(topology.groups(1).workers(1).memory_bytes() == 1 << 20);
  CHECK(topology.edges_size() == 2);
  CHECK(topology.limits().size_multiple() == 16);
  CHECK(harness.outputs().open_count == 0);
  const auto workers = harness.pidFds();
  harness.interrupt();
  CHECK(harness.waitEnd().ok());
  CHECK(workers.size() == 4);
  for (const UniqueFd& worker : workers)
    CHECK(exited(worker));
  CHECK(harness.service().get(jobs[0]).status().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("supervisor: a watch sees every state of a job", "[supervisor]") {
  config::Topology topology = fastTopology({1});
  topology.groups[0].options = {{"steps", "3"}, {"step_ms", "10"}};
  Harness harness(topology, fakeWorker());
  REQUIRE(harness.waitReady());
  Mutex mutex;
  std::vector<v1::Job> seen;
  const JobId job = harness.submit();
  auto watch = harness.service().watch(job, [&](const v1::Job& now) {
    const MutexLock held(mutex);
    seen.push_back(now);
  });
  REQUIRE(watch.ok());
  harness.waitJob(job);
  watch->reset();
  const MutexLock held(mutex);
  REQUIRE(!seen.empty());
  CHECK(seen.back().state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(seen.back().stages(0).step() == 3);
}

TEST_CASE("supervisor: the figures of an answer are there when the job ends with it", "[supervisor]") {
  for (const auto& [script, end] :
       {std::pair("", v1::JOB_STATE_SUCCEEDED), {"g1 0 * run fail", v1::JOB_STATE_FAILED}}) {
    config::Topology topology = fastTopology({1, 1});
    topology.groups[0].options = {{"step_ms", "50"}};  // for the watch to be there first
    Harness harness(topology, fakeWorker(), script);
    REQUIRE(harness.waitReady());
    const JobId job = harness.submit();
    Mutex mutex;
    uint64_t bytes_read = 0;
    auto watch = harness.service().watch(job, [&](const v1::Job& now) {
      if (!isTerminal(now.state())) return;
      const MutexLock held(mutex);
      bytes_read = harness.service().edges().edges(0).consumers(0).bytes();
    });
    REQUIRE(watch.ok());
    CHECK(harness.waitJob(job).state() == end);
    watch->reset();
    const MutexLock held(mutex);
    CHECK(bytes_read == 1024);
  }
}

TEST_CASE("supervisor: a first start that fails in any phase ends the daemon with the first cause, and nothing is left",
          "[supervisor]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"start segv", "died while starting: signal SIGSEGV"},
      {"load exit", "died while loading: exit code 3"},
      {"load fatal", "scripted: weights.safetensors is missing"},
      {"warm-up segv", "died while warming up: signal SIGSEGV"},
      {"load stop", "no heartbeat"},
      {"load hang", "loading (deadlines.load) took longer"},
      {"start hang", "starting (deadlines.load) took longer"},
  };
  for (const auto& [script, cause] : cases) {
    CAPTURE(script);
    config::Topology topology = fastTopology({1, 2});
    // Long beside what the other workers take on a machine that is busy.
    topology.deadlines.load = milliseconds(script.ends_with("hang") ? 5000 : 60000);
    Harness harness(topology, fakeWorker(), "g1 1 * " + script + "\n");
    const auto workers = harness.pidFds();
    const Status outcome = harness.waitEnd();
    CHECK(contains(messageOf(outcome), {"g1 rank 1 (fake)", cause.c_str()}));
    CHECK(Harness::waitUntil([&] { return std::all_of(workers.begin(), workers.end(), exited); },
                             withSlack(milliseconds(2000))));
    CHECK(harness.service().submit({}).status().code() == absl::StatusCode::kUnavailable);
  }
}

TEST_CASE("supervisor: a worker's last lines are part of its death's message", "[supervisor]") {
  Harness harness(fastTopology({1}), fakeWorker(), "g0 0 * load segv\n");
  CHECK(contains(messageOf(harness.waitEnd()), {"its last lines", "fake worker: segv at load"}));
}

TEST_CASE("supervisor: an executable that is missing is named", "[supervisor]") {
  Harness harness(fastTopology({1}), "/nonexistent/latent-worker");
  CHECK(contains(messageOf(harness.waitEnd()), {"/nonexistent/latent-worker"}));
}

TEST_CASE("supervisor: a death in any later phase is recovered from; queued jobs keep their place", "[supervisor]") {
  for (const std::string point :
       {"idle kill", "open segv", "run segv", "run exit", "publish segv", "run stop", "run mute"}) {
    CAPTURE(point);
    config::Topology topology = fastTopology({1, 2, 1});
    topology.deadlines.heartbeat_miss = milliseconds(3000);
    topology.restart.failures_max = 0;
    // Epoch 2 and 3 die while they start.
    const std::string script = "g1 0 1 " + point + "\ng1 1 2 load segv\ng1 0 3 warm-up exit\n";
    Harness harness(topology, fakeWorker(), script);
    const bool dies_serving = point.starts_with("run") || point.starts_with("publish");
    if (point != "open segv") REQUIRE(harness.waitReady());
    if (point == "idle kill") REQUIRE(kill(harness.pidOf(1), SIGKILL) == 0);
    if (!dies_serving) {
      REQUIRE(Harness::waitUntil([&] { return harness.service().topology().groups(1).epoch() >= 4; }));
      REQUIRE(harness.waitReady());
    }
    std::vector<JobId> jobs;
    for (int count = 0; count < 8; ++count)
      jobs.push_back(harness.submit());
    std::map<v1::JobState, int> ended;
    std::string failure;
    for (const JobId& id : jobs) {
      const v1::Job job = harness.waitJob(id);
      ++ended[job.state()];
      if (job.state() == v1::JOB_STATE_FAILED) {
        CHECK(job.error().code() == static_cast<int>(absl::StatusCode::kUnavailable));
        failure = job.error().message();
      }
    }
    if (dies_serving) {
      CHECK(ended[v1::JOB_STATE_FAILED] == 1);  // what else the pipeline held is run again
      CHECK(contains(failure, {"g1 rank 0 (fake)"}));
    }
    CHECK(ended[v1::JOB_STATE_FAILED] + ended[v1::JOB_STATE_SUCCEEDED] == 8);
    CHECK(harness.service().topology().groups(1).epoch() == 4);
    CHECK(harness.service().topology().groups(0).epoch() == 1);
    harness.interrupt();
    CHECK(harness.waitEnd().ok());
  }
}

TEST_CASE("supervisor: a kill from outside fails the job at once, with rank, stage and signal", "[supervisor]") {
  config::Topology topology = fastTopology({1, 1});
  topology.groups[1].options = {{"steps", "1000"}, {"step_ms", "120"}};
  Harness harness(topology, fakeWorker());
  REQUIRE(harness.waitReady());
  const JobId job = harness.submit();
  REQUIRE(Harness::waitUntil([&] { return harness.service().get(job)->stages(1).step() > 2; }));
  REQUIRE(kill(harness.pidOf(1), SIGKILL) == 0);
  const auto killed = std::chrono::steady_clock::now();
  const v1::Job ended = harness.waitJob(job);
  CHECK(std::chrono::steady_clock::now() - killed < withSlack(milliseconds(1000)));  // two minutes of steps were left
  CHECK(ended.error().code() == static_cast<int>(absl::StatusCode::kUnavailable));
  CHECK(contains(ended.error().message(), {"g1 rank 0 (fake)", "SIGKILL", "stage g1", "of 1000 steps done"}));
}

TEST_CASE("supervisor: a job that may be retried survives a death; each death is told with its own lines",
          "[supervisor]") {
  // Epoch 1 dies under the job, epoch 2 while it loads.
  Harness harness(fastTopology({1, 1}), fakeWorker(), "g1 0 1 run segv\ng1 0 2 load exit\n");
  REQUIRE(harness.waitReady());
  const JobId id = harness.submit(1);
  const v1::Job ended = harness.waitJob(id);
  CHECK(ended.state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(ended.restarts() == 1);
  const std::string died = "died while running job " + id;
  CHECK(contains(ended.restart_cause().message(), {"g1 rank 0 (fake)", died.c_str(), "fake worker: segv at run"}));
  const std::string last = harness.service().topology().groups(1).last_failure().message();
  CHECK(contains(last, {"died while loading", "fake worker: exit at load"}));
  CHECK(!contains(last, {"segv at run"}));
}

TEST_CASE("supervisor: a replica's death costs its job alone; the other one serves on, and it comes back",
          "[supervisor][replica]") {
  // Groups: g0, g1.0, g1.1, g2.
  config::Topology topology = fastTopology({1, 2, 1}, {1, 2});
  topology.limits.steps_max = 1000;
  for (const size_t group : topology.stages[1].groups)
    topology.groups[group].options = {{"steps", "0"}, {"step_ms", "10"}};
  Harness harness(topology, fakeWorker());
  REQUIRE(harness.waitReady());
  // The first one is not to end before it is killed, nor the second one before that.
  std::vector<JobId> jobs{harness.submit(0, 1000), harness.submit(0, 300)};
  for (int count = 0; count < 4; ++count)
    jobs.push_back(harness.submit());
  const auto stage = [&](const JobId& id) { return harness.service().get(id)->stages(1); };
  REQUIRE(Harness::waitUntil([&] { return stage(jobs[0]).step() > 2 && stage(jobs[1]).step() > 2; }));
  CHECK(stage(jobs[0]).group() == "g1.0");
  CHECK(stage(jobs[1]).group() == "g1.1");
  CHECK(stage(jobs[0]).stage() == "g1");
  REQUIRE(kill(harness.pidOf(1, 1), SIGKILL) == 0);
  const v1::Job lost = harness.waitJob(jobs[0]);
  CHECK(contains(lost.error().message(), {"g1.0 rank 1 (fake)", "SIGKILL", "stage g1.0"}));
  CHECK(harness.service().ready().ok());
  for (size_t index = 1; index < jobs.size(); ++index)
    CHECK(harness.waitJob(jobs[index]).state() == v1::JOB_STATE_SUCCEEDED);
  REQUIRE(Harness::waitUntil(
      [&] { return harness.service().topology().groups(1).workers(1).state() == v1::WORKER_STATE_READY; }));
  std::set<std::string> groups;
  for (int count = 0; count < 4; ++count) {
    const JobId first = harness.submit(0, 50);
    const JobId second = harness.submit(0, 50);
    for (const JobId& id : {first, second})
      groups.insert(harness.waitJob(id).stages(1).group());
  }
  CHECK(groups == std::set<std::string>{"g1.0", "g1.1"});
  const std::string metrics = harness.registry().expose();
  CHECK(contains(
      metrics,
      {"latentd_stage_commands_total{group=\"g1.0\",stage=\"g1\"}", "latentd_handoffs_total{edge=\"g0.run->g1.run\"}",
       "latentd_edge_info{edge=\"g0.run->g1.run\",transport=\"shm\"} 2", "latentd_slots{edge=\"g1.run->g2.run\"} 4"}));
  CHECK(metrics.find("edge=\"g0.run->g1.0.run\"") == std::string::npos);
  harness.interrupt();
  CHECK(harness.waitEnd().ok());
}

TEST_CASE("supervisor: a worker that asks for it is replaced before the next job", "[supervisor]") {
  Harness harness(fastTopology({1}), fakeWorker(), "g0 0 1 run recycle\n");
  REQUIRE(harness.waitReady());
  const v1::Job failed = harness.waitJob(harness.submit());
  CHECK(failed.error().code() == static_cast<int>(absl::StatusCode::kResourceExhausted));
  const v1::Job next = harness.waitJob(harness.submit());
  CHECK(next.state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(harness.service().topology().groups(0).epoch() == 2);
}

TEST_CASE("supervisor: an edge that cannot open fails its group by name", "[supervisor]") {
  config::Topology topology = fastTopology({1, 1});
  topology.groups[1].options = {{"refuse_open", "1"}};
  topology.restart.failures_max = 2;
  Harness harness(topology, fakeWorker());
  const Status outcome = harness.waitEnd();
  CHECK(contains(messageOf(outcome), {"g1 rank 0", "edge g0.run->g1.run does not open: scripted: no memory"}));
}

TEST_CASE("supervisor: cancel ends a running job; a stage that ignores it costs its group", "[supervisor]") {
  config::Topology topology = fastTopology({1});
  topology.groups[0].options = {{"steps", "1000"}, {"step_ms", "5"}};
  topology.deadlines.stall = milliseconds(1000);
  Harness harness(topology, fakeWorker(), "g0 0 2 run hang\n");
  REQUIRE(harness.waitReady());
  const JobId job = harness.submit();
  REQUIRE(Harness::waitUntil([&] { return harness.service().get(job)->stages(0).step() > 2; }));
  CHECK(harness.service().cancel(job)->state() == v1::JOB_STATE_CANCELLING);
  CHECK(harness.waitJob(job).state() == v1::JOB_STATE_CANCELLED);
  CHECK(harness.service().topology().groups(0).epoch() == 1);
  REQUIRE(kill(harness.pidOf(0), SIGKILL) == 0);
  REQUIRE(Harness::waitUntil([&] { return harness.service().topology().groups(0).epoch() == 2; }));
  REQUIRE(harness.waitReady());
  const JobId stuck = harness.submit();
  REQUIRE(Harness::waitUntil([&] { return harness.service().get(stuck)->stages(0).has_start_time(); }));
  harness.service().cancel(stuck).status().IgnoreError();
  CHECK(harness.waitJob(stuck).state() == v1::JOB_STATE_CANCELLED);
  CHECK(Harness::waitUntil([&] { return harness.service().topology().groups(0).epoch() == 3; }));
}

TEST_CASE("supervisor: a stage that makes no progress fails its job", "[supervisor]") {
  Harness harness(fastTopology({1}), fakeWorker(), "g0 0 1 run hang\n");
  REQUIRE(harness.waitReady());
  v1::SubmitRequest request;
  request.mutable_parameters()->set_prompt("x");
  request.mutable_stall_timeout()->set_nanos(500 * 1000 * 1000);
  const auto job = harness.service().submit(request);
  REQUIRE(job.ok());
  const v1::Job ended = harness.waitJob(job->id());
  CHECK(ended.error().code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  CHECK(contains(ended.error().message(), {"no progress for 0.5 s", "stage g0"}));
}

TEST_CASE("supervisor: progress that it could not read, because it was stopped, was made", "[supervisor]") {
  config::Topology topology = fastTopology({1});
  topology.groups[0].options = {{"steps", "150"}, {"step_ms", "20"}};
  topology.deadlines.stall = milliseconds(1000);
  Harness harness(topology, fakeWorker());
  REQUIRE(harness.waitReady());
  const JobId job = harness.submit();
  REQUIRE(Harness::waitUntil([&] { return harness.service().get(job)->stages(0).step() > 2; }));
  harness.holdUp(milliseconds(2000));
  CHECK(harness.waitJob(job).state() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE("supervisor: one interrupt lets a running job finish and cancels queued ones", "[supervisor]") {
  config::Topology topology = fastTopology({1});
  topology.limits.in_flight_per_group = 1;
  topology.deadlines.shutdown_grace = milliseconds(60000);
  topology.groups[0].options = {{"steps", "100"}, {"step_ms", "20"}};  // the first is not to end before the interrupt
  Harness harness(topology, fakeWorker());
  REQUIRE(harness.waitReady());
  std::vector<v1::JobState> last(2);
  Mutex mutex;
  std::vector<std::unique_ptr<JobService::Watch>> watches;
  for (size_t index = 0; index < last.size(); ++index) {
    auto watch = harness.service().watch(harness.submit(), [&, index](const v1::Job& job) {
      const MutexLock held(mutex);
      last[index] = job.state();
    });
    REQUIRE(watch.ok());
    watches.push_back(*std::move(watch));
  }
  harness.interrupt();
  CHECK(harness.waitEnd().ok());
  const MutexLock held(mutex);
  CHECK(last[0] == v1::JOB_STATE_SUCCEEDED);
  CHECK(last[1] == v1::JOB_STATE_CANCELLED);
}

TEST_CASE("supervisor: jobs that do not finish in time are cancelled, hung workers killed, within the grace",
          "[supervisor]") {
  config::Topology topology = fastTopology({1, 1});
  topology.deadlines.shutdown_grace = milliseconds(2000);
  topology.groups[1].options = {{"steps", "100000"}, {"step_ms", "20"}};
  Harness harness(topology, fakeWorker(), "g0 0 1 run hang\n");
  REQUIRE(harness.waitReady());
  const JobId job = harness.submit();
  REQUIRE(Harness::waitUntil([&] { return harness.service().get(job)->stages(0).has_start_time(); }));
  const auto workers = harness.pidFds();
  const auto begin = std::chrono::steady_clock::now();
  harness.interrupt();
  CHECK(harness.waitEnd().ok());
  CHECK(std::chrono::steady_clock::now() - begin < withSlack(milliseconds(2000)));
  for (const UniqueFd& worker : workers)
    CHECK(exited(worker));
}

TEST_CASE("supervisor: a second interrupt kills", "[supervisor]") {
  config::Topology topology = fastTopology({1, 1});
  topology.deadlines.shutdown_grace = milliseconds(60000);
  Harness harness(topology, fakeWorker(), "g0 0 1 run hang\n");
  REQUIRE(harness.waitReady());
  const JobId job = harness.submit();
  REQUIRE(Harness::waitUntil([&] { return harness.service().get(job)->stages(0).has_start_time(); }));
  const auto workers = harness.pidFds();
  harness.interrupt();
  harness.interrupt();
  CHECK(harness.waitEnd(withSlack(milliseconds(1000))).code() == absl::StatusCode::kAborted);
  CHECK(Harness::waitUntil([&] { return std::all_of(workers.begin(), workers.end(), exited); },
                           withSlack(milliseconds(1000))));
}

TEST_CASE("supervisor: an interrupt during the start ends it", "[supervisor]") {
  Harness harness(fastTopology({1, 1}), fakeWorker(), "g0 0 1 load hang\n");
  harness.interrupt();
  CHECK(harness.waitEnd().ok());
}

TEST_CASE("supervisor: draining refuses new jobs, ends what there is, then the daemon", "[supervisor]") {
  config::Topology topology = fastTopology({1});
  topology.groups[0].options = {{"steps", "5"}, {"step_ms", "20"}};
  Harness harness(topology, fakeWorker());
  REQUIRE(harness.waitReady());
  harness.submit();
  harness.submit();
  harness.submit();
  CHECK(harness.service().drain(milliseconds(10000)) == 3);
  CHECK(harness.service().ready().code() == absl::StatusCode::kUnavailable);
  v1::SubmitRequest request;
  request.mutable_parameters()->set_prompt("x");
  CHECK(harness.service().submit(request).status().code() == absl::StatusCode::kUnavailable);
  CHECK(harness.waitEnd().ok());
  CHECK(contains(harness.registry().expose(), {"latentd_jobs_total{result=\"succeeded\"} 3"}));
}

// The other process of the next test: serves until it is killed, after telling its folder and its workers' pids.
TEST_CASE("supervisor child that serves until it is killed", "[.][child]") {
  Harness harness(fastTopology({1, 2}), fakeWorker(), "g1 1 1 run stop\n");
  REQUIRE(harness.waitReady());
  harness.submit();
  std::string told = harness.folder() + " ";
  for (const auto& [group, rank] : {std::pair(0U, 0U), {1U, 0U}, {1U, 1U}}) {
    told += std::to_string(harness.pidOf(group, rank)) + " ";
  }
  REQUIRE(write(3, told.data(), told.size()) == static_cast<ssize_t>(told.size()));
  harness.waitEnd(std::chrono::minutes(1)).IgnoreError();
}

TEST_CASE("supervisor: SIGKILL takes every worker along within a second, a stopped one too", "[supervisor]") {
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  testing::ChildTestCase daemon("supervisor child that serves until it is killed", {write_end.get()});
  write_end.reset();
  std::array<char, 256> buffer{};
  pollfd entry{read_end.get(), POLLIN, 0};
  REQUIRE(poll(&entry, 1, 60000) == 1);
  REQUIRE(read(read_end.get(), buffer.data(), buffer.size() - 1) > 0);
  std::vector<UniqueFd> workers;
  std::istringstream told(buffer.data());
  std::string folder;  // of the child, which is killed before it could remove it
  REQUIRE(told >> folder);
  for (int pid = 0; told >> pid;)
    workers.emplace_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  REQUIRE(workers.size() == 3);
  for (const UniqueFd& worker : workers)
    REQUIRE(!exited(worker));
  daemon.signal(SIGKILL);
  CHECK(Harness::waitUntil([&] { return std::all_of(workers.begin(), workers.end(), exited); },
                           withSlack(milliseconds(1000))));
  CHECK(std::filesystem::remove_all(folder) > 0);
}

}  // namespace
}  // namespace latentd::supervisor
