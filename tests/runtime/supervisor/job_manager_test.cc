#include "runtime/supervisor/job_manager.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "runtime/metrics/registry.h"
#include "tests/runtime/supervisor/fakes.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;
using std::chrono::milliseconds;

config::Topology oneGroup() {
  config::Topology topology = chainTopology({1});
  topology.limits.in_flight_per_group = 1;
  topology.queue.length_max = 3;
  return topology;
}

// One group, one worker, jobs of one stage: what is tested is what stands around the dispatcher.
struct Fixture {
  explicit Fixture(config::Topology made = oneGroup()) : topology(std::move(made)) {
    JobLimits limits = mergeLimits({}, topology.limits, {});
    limits.defaults.set_frames(5);
    limits.defaults.set_width(32);
    limits.defaults.set_height(32);
    limits.defaults.set_steps(4);
    limits.defaults.set_guidance_scale(1);
    limits.defaults.set_fps(8);
    jobs.setLimits(limits);
    for (uint32_t edge = 0; edge < topology.edges.size(); ++edge)
      jobs.dispatcher().edgeOpened(EdgeIndex(edge), ChannelId(edge + 1));
    for (uint32_t group = 0; group < topology.groups.size(); ++group)
      jobs.dispatcher().groupReady(GroupIndex(group));
  }
  ~Fixture() { unlink(result_path.c_str()); }

  static v1::SubmitRequest request(int priority = 0) {
    v1::SubmitRequest request;
    request.mutable_parameters()->set_prompt("a red ball");
    request.set_priority(priority);
    return request;
  }
  JobId submit(int priority = 0) {
    const auto job = jobs.submit(request(priority));
    REQUIRE(job.ok());
    return job->id();
  }
  v1::JobState state(const JobId& id) { return jobs.get(id)->state(); }
  void runPosted() {
    for (const auto& task : std::exchange(posted, {}))
      task();
  }
  void stageDone(const JobId& id) {
    wire::StageDone event;
    event.set_job_id(id);
    event.mutable_timings()->set_compute_seconds(2);
    event.mutable_timings()->add_step_seconds(0.5);
    jobs.dispatcher().onDone({}, event);
    jobs.pump();
  }
  void stageFailed(const JobId& id, absl::StatusCode code) {
    wire::StageFailed event;
    event.set_job_id(id);
    event.mutable_status()->set_code(static_cast<int>(code));
    jobs.dispatcher().onFailed({}, event);
    jobs.pump();
  }
  void succeed(const JobId& id) {
    stageDone(id);
    std::ofstream(result_path) << "result";
    outputs.find(id)->done(media::OutputResult{result_path, 6, 5});
    runPosted();
  }

  testing::ManualClock clock;
  config::Topology topology;
  metrics::Registry registry;
  metrics::JobMetrics metrics{registry};
  FakeOutputs outputs;
  FakeSink sink;
  std::vector<std::function<void()>> posted;
  uint64_t next_random = 1;
  std::string result_path = "/tmp/latentd_job_manager_test." + std::to_string(getpid());
  JobManager jobs{{.topology = topology,
                   .clock = clock,
                   .outputs = outputs,
                   .metrics = metrics,
                   .sink = sink,
                   .random = [this] { return (next_random++ << 32) + 7; },
                   .post =
                       [this](std::function<void()> task) {
                         posted.push_back(std::move(task));
                         return true;
                       },
                   .group_unusable = [](GroupIndex, const Status&) {},
                   .group_suspect = [](GroupIndex, const Status&) {}}};
};

TEST_CASE("job_manager: a job from submission to its result", "[supervisor]") {
  Fixture fixture;
  const auto submitted = fixture.jobs.submit(Fixture::request());
  REQUIRE(submitted.ok());
  CHECK(submitted->state() == v1::JOB_STATE_RUNNING);
  CHECK(submitted->parameters().has_seed());
  const JobId id = submitted->id();
  CHECK(fixture.jobs.openResult(id).status().code() == absl::StatusCode::kFailedPrecondition);
  fixture.succeed(id);
  const v1::Job job = *fixture.jobs.get(id);
  CHECK(job.state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(job.result_available());
  CHECK(job.result_bytes() == 6);
  CHECK(job.stages(0).compute().seconds() == 2);
  CHECK(job.has_finish_time());
  auto result = fixture.jobs.openResult(id);
  REQUIRE(result.ok());
  CHECK(result->bytes == 6);
  CHECK(result->format == v1::OUTPUT_FORMAT_MP4);
  CHECK(fixture.jobs.idle());
  unlink(fixture.result_path.c_str());
  CHECK(!fixture.jobs.get(id)->result_available());
  CHECK(fixture.jobs.openResult(id).status().code() == absl::StatusCode::kNotFound);
  CHECK(fixture.jobs.remove(id).ok());
  CHECK(fixture.outputs.removed == std::vector<JobId>{id});
  CHECK(fixture.jobs.get(id).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("job_manager: a worker's death puts a job back at its old place, once", "[supervisor]") {
  Fixture fixture;
  v1::SubmitRequest request = Fixture::request();
  request.set_retries(1);
  const JobId id = fixture.jobs.submit(request)->id();
  const JobId next = fixture.submit();
  std::vector<v1::Job> seen;
  const auto watch = fixture.jobs.watch(id, [&](const v1::Job& job) { seen.push_back(job); });
  const auto loseGroup = [&] {
    wire::StageStarted started;
    started.set_job_id(id);
    fixture.jobs.dispatcher().onStarted({}, started);
    fixture.jobs.dispatcher().groupLost(GroupIndex(0), absl::UnavailableError("g0 died"));
    fixture.jobs.pump();
  };
  loseGroup();
  const v1::Job queued = *fixture.jobs.get(id);
  CHECK(queued.state() == v1::JOB_STATE_QUEUED);
  CHECK(queued.queue_position() == 1);
  CHECK(queued.retries() == 1);
  CHECK(queued.restarts() == 1);
  CHECK(queued.restart_cause().message().find("g0 died") == 0);
  CHECK(!queued.stages(0).has_start_time());
  CHECK(fixture.jobs.get(next)->queue_position() == 2);
  CHECK(fixture.metrics.retried.Value() == 1);
  CHECK(std::any_of(seen.begin(), seen.end(),
                    [](const v1::Job& job) { return job.state() == v1::JOB_STATE_QUEUED && job.restarts() == 1; }));
  // The lost run's output opens and ends late: that is not the next run's.
  fixture.outputs.states[0]->opened(absl::OkStatus());
  fixture.outputs.states[0]->done(absl::CancelledError("aborted"));
  fixture.jobs.dispatcher().groupReady(GroupIndex(0));
  fixture.jobs.pump();
  fixture.runPosted();
  REQUIRE(fixture.state(id) == v1::JOB_STATE_RUNNING);
  CHECK(fixture.sink.descriptors.empty());
  SECTION("the second run succeeds") {
    fixture.outputs.states[1]->opened(absl::OkStatus());
    fixture.runPosted();
    CHECK(fixture.sink.descriptors == std::vector<uint64_t>{fixture.outputs.states[1]->ring_id});
    fixture.stageDone(id);
    std::ofstream(fixture.result_path) << "result";
    fixture.outputs.states[1]->done(media::OutputResult{fixture.result_path, 6, 5});
    fixture.runPosted();
    CHECK(fixture.state(id) == v1::JOB_STATE_SUCCEEDED);
  }
  SECTION("the second death is the last") {
    loseGroup();
    CHECK(fixture.state(id) == v1::JOB_STATE_FAILED);
  }
  CHECK(fixture.metrics.retried.Value() == 1);
}

TEST_CASE("job_manager: a job that a lost group had not begun is queued again, whatever its retries", "[supervisor]") {
  Fixture fixture;
  fixture.topology.limits.in_flight_per_group = 2;
  JobId id = fixture.submit();
  JobId next = fixture.submit();
  const JobId later = fixture.submit();
  const auto loseGroup = [&] {
    wire::StageStarted started;
    started.set_job_id(id);
    fixture.jobs.dispatcher().onStarted({}, started);
    REQUIRE(fixture.state(next) == v1::JOB_STATE_RUNNING);
    fixture.jobs.dispatcher().groupLost(GroupIndex(0), absl::UnavailableError("g0 died"));
    fixture.jobs.pump();
    CHECK(fixture.state(id) == v1::JOB_STATE_FAILED);
  };
  loseGroup();
  const v1::Job queued = *fixture.jobs.get(next);
  CHECK(queued.state() == v1::JOB_STATE_QUEUED);
  CHECK(queued.restarts() == 0);
  CHECK(queued.displacements() == 1);
  CHECK(queued.queue_position() == 1);
  CHECK(fixture.jobs.get(later)->queue_position() == 2);
  CHECK(fixture.jobs.cancel(later, "asked").ok());
  CHECK(queued.restart_cause().message().find("g0 died") == 0);
  CHECK(fixture.metrics.retried.Value() == 0);
  CHECK(fixture.metrics.displaced.Value() == 1);
  CHECK(fixture.metrics.stage_failures.with("g0", "UNAVAILABLE").Value() == 1);
  fixture.jobs.dispatcher().groupReady(GroupIndex(0));
  fixture.jobs.pump();
  REQUIRE(fixture.state(next) == v1::JOB_STATE_RUNNING);
  fixture.stageDone(next);
  std::ofstream(fixture.result_path) << "result";
  fixture.outputs.states.back()->done(media::OutputResult{fixture.result_path, 6, 5});
  fixture.runPosted();
  CHECK(fixture.state(next) == v1::JOB_STATE_SUCCEEDED);

  // Not for ever: beyond the bound it is suspected, and fails.
  id = fixture.submit(100);
  next = fixture.submit();
  uint32_t displaced = 0;
  while (true) {
    loseGroup();
    if (fixture.state(next) != v1::JOB_STATE_QUEUED) break;
    REQUIRE(++displaced < 20);
    id = fixture.submit(100);
    fixture.jobs.dispatcher().groupReady(GroupIndex(0));
    fixture.jobs.pump();
  }
  CHECK(displaced == 8);
  CHECK(fixture.state(next) == v1::JOB_STATE_FAILED);
}

TEST_CASE("job_manager: a running job says which stage it waits for, and waits until the first has begun",
          "[supervisor]") {
  Fixture fixture;
  fixture.topology.limits.in_flight_per_group = 2;
  const JobId first = fixture.submit();
  const JobId second = fixture.submit();
  wire::StageStarted started;
  started.set_job_id(first);
  fixture.jobs.dispatcher().onStarted({}, started);
  CHECK(!fixture.jobs.get(first)->stages(0).waiting());
  const v1::Job job = *fixture.jobs.get(second);
  CHECK(job.state() == v1::JOB_STATE_RUNNING);
  CHECK(job.stages(0).waiting());
  CHECK(job.stages(0).wait_reason() == v1::WAIT_REASON_GROUP_BUSY);
  const auto waits = [&] {
    const auto families = fixture.registry.expose();
    const std::string name = "latentd_queue_wait_seconds_sum ";
    const size_t at = families.find(name);
    return at == std::string::npos ? -1.0 : std::stod(families.substr(at + name.size()));
  };
  CHECK(waits() == 0);
  fixture.clock.advance(milliseconds(7000));
  fixture.stageDone(first);
  started.set_job_id(second);
  fixture.jobs.dispatcher().onStarted({}, started);
  CHECK(waits() == 7);
  // Once a job, at its first stage that computes: what is run again has had its wait.
  fixture.jobs.dispatcher().onStarted({}, started);
  CHECK(fixture.registry.expose().find("latentd_queue_wait_seconds_count 2\n") != std::string::npos);
  CHECK(!fixture.jobs.get(second)->stages(0).waiting());
}

TEST_CASE("job_manager: nothing is accepted before the model is known, or while draining", "[supervisor]") {
  Fixture fixture;
  fixture.jobs.close("the daemon drains");
  const auto refused = fixture.jobs.submit(Fixture::request());
  CHECK(refused.status().code() == absl::StatusCode::kUnavailable);
  CHECK(fixture.metrics.rejected.with("draining").Value() == 1);
}

TEST_CASE("job_manager: an invalid submission takes no place", "[supervisor]") {
  Fixture fixture;
  v1::SubmitRequest request = Fixture::request();
  request.mutable_parameters()->set_steps(0);
  CHECK(fixture.jobs.submit(request).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(fixture.metrics.rejected.with("invalid").Value() == 1);
  CHECK(fixture.jobs.unfinished() == 0);
}

TEST_CASE("job_manager: the queue is bounded, positions are shown, priorities are kept", "[supervisor]") {
  Fixture fixture;
  const JobId running = fixture.submit();
  const JobId first = fixture.submit();
  const JobId second = fixture.submit();
  const JobId urgent = fixture.submit(50);
  CHECK(fixture.jobs.submit(Fixture::request()).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(fixture.metrics.rejected.with("queue_full").Value() == 1);
  CHECK(fixture.jobs.get(running)->queue_position() == 0);
  CHECK(fixture.jobs.get(urgent)->queue_position() == 1);
  CHECK(fixture.jobs.get(first)->queue_position() == 2);
  CHECK(fixture.jobs.get(second)->queue_position() == 3);
  CHECK(fixture.metrics.queue_depth.Value() == 3);
  fixture.succeed(running);
  CHECK(fixture.state(urgent) == v1::JOB_STATE_RUNNING);
  CHECK(fixture.jobs.get(first)->queue_position() == 1);
}

TEST_CASE("job_manager: a repeated request id gives the first job", "[supervisor]") {
  Fixture fixture;
  v1::SubmitRequest request = Fixture::request();
  request.set_request_id("key");
  const auto first = fixture.jobs.submit(request);
  request.mutable_parameters()->set_prompt("another");
  const auto second = fixture.jobs.submit(request);
  REQUIRE(second.ok());
  CHECK(second->id() == first->id());
  CHECK(second->parameters().prompt() == "a red ball");
  CHECK(fixture.jobs.unfinished() == 1);
}

TEST_CASE("job_manager: a queued job is cancelled at once, a running one when its worker let go", "[supervisor]") {
  Fixture fixture;
  const JobId running = fixture.submit();
  const JobId queued = fixture.submit();
  CHECK(fixture.jobs.cancel(queued, "asked")->state() == v1::JOB_STATE_CANCELLED);
  CHECK(fixture.jobs.cancel(running, "asked")->state() == v1::JOB_STATE_CANCELLING);
  CHECK(fixture.jobs.cancel(running, "asked")->state() == v1::JOB_STATE_CANCELLING);
  fixture.stageFailed(running, absl::StatusCode::kCancelled);
  CHECK(fixture.state(running) == v1::JOB_STATE_CANCELLED);
  CHECK(fixture.jobs.get(running)->error().code() == static_cast<int>(absl::StatusCode::kCancelled));
  CHECK(fixture.jobs.cancel(running, "asked")->state() == v1::JOB_STATE_CANCELLED);
  CHECK(fixture.metrics.ended.with("cancelled").Value() == 2);
  const JobId done = fixture.submit();
  fixture.succeed(done);
  CHECK(fixture.jobs.cancel(done, "asked").status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(fixture.jobs.cancel("nothing", "asked").status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("job_manager: deadlines count from submission, in queue and in pipeline", "[supervisor]") {
  Fixture fixture;
  v1::SubmitRequest request = Fixture::request();
  request.mutable_deadline()->set_seconds(5);
  const JobId running = fixture.jobs.submit(request)->id();
  fixture.clock.advance(milliseconds(1000));
  const JobId queued = fixture.jobs.submit(request)->id();
  fixture.clock.advance(milliseconds(3999));
  fixture.jobs.onTimer();
  CHECK(fixture.state(running) == v1::JOB_STATE_RUNNING);
  fixture.clock.advance(milliseconds(1));
  CHECK(fixture.jobs.nextDeadline() <= fixture.clock.now());
  fixture.jobs.onTimer();
  CHECK(fixture.state(running) == v1::JOB_STATE_FAILED);
  CHECK(fixture.jobs.get(running)->error().code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  fixture.clock.advance(milliseconds(1000));
  fixture.jobs.onTimer();
  CHECK(fixture.state(queued) == v1::JOB_STATE_FAILED);
  CHECK(fixture.jobs.get(queued)->error().message().find("queued") != std::string::npos);
}

TEST_CASE("job_manager: whoever hears of an end finds it in the metrics", "[supervisor]") {
  Fixture fixture;
  std::vector<std::string> counted;
  const auto counts = [&](const v1::Job& job) {
    if (!isTerminal(job.state())) return;
    const std::string text = fixture.registry.expose();
    for (const char* name : {"\nlatentd_jobs_running ", "\nlatentd_queue_depth "}) {
      const size_t begin = text.find(name) + 1;
      counted.push_back(text.substr(begin, text.find('\n', begin) - begin));
    }
  };
  const JobId runs = fixture.submit(), queued = fixture.submit();
  const auto first = fixture.jobs.watch(runs, counts), second = fixture.jobs.watch(queued, counts);
  REQUIRE(fixture.jobs.cancel(queued, "").ok());
  fixture.succeed(runs);
  CHECK(counted == std::vector<std::string>{"latentd_jobs_running 1", "latentd_queue_depth 0", "latentd_jobs_running 0",
                                            "latentd_queue_depth 0"});
}

TEST_CASE("job_manager: a watch hears the present state, every later one, and nothing after its end", "[supervisor]") {
  Fixture fixture;
  const JobId running = fixture.submit();
  const JobId id = fixture.submit();
  std::vector<std::pair<v1::JobState, uint32_t>> seen;
  auto watch =
      fixture.jobs.watch(id, [&](const v1::Job& job) { seen.emplace_back(job.state(), job.queue_position()); });
  REQUIRE(watch.ok());
  const JobId urgent = fixture.submit(9);
  fixture.jobs.cancel(urgent, "asked").IgnoreError();
  fixture.succeed(running);
  fixture.succeed(id);
  REQUIRE(seen.size() >= 3);
  CHECK(seen.front() == std::pair(v1::JOB_STATE_QUEUED, 1U));
  CHECK(std::find(seen.begin(), seen.end(), std::pair(v1::JOB_STATE_RUNNING, 0U)) != seen.end());
  CHECK(seen.back().first == v1::JOB_STATE_SUCCEEDED);
  const size_t heard = seen.size();
  watch->reset();
  CHECK(seen.size() == heard);

  int late = 0;
  auto finished = fixture.jobs.watch(id, [&](const v1::Job& job) { late += isTerminal(job.state()) ? 1 : 0; });
  CHECK(late == 1);
  CHECK(fixture.jobs.watch("nothing", [](const v1::Job&) {}).status().code() == absl::StatusCode::kNotFound);

  const JobId next = fixture.submit();
  int events = 0;
  {
    auto dropped = fixture.jobs.watch(next, [&](const v1::Job&) { ++events; });
  }
  fixture.succeed(next);
  CHECK(events == 1);
}

TEST_CASE("job_manager: progress and the time that is left", "[supervisor]") {
  Fixture fixture;
  const JobId id = fixture.submit();
  CHECK(!fixture.jobs.get(id)->has_remaining());
  CHECK(!fixture.jobs.get(id)->stages(0).has_compute_start_time());
  wire::StageStarted started;
  started.set_job_id(id);
  fixture.jobs.dispatcher().onStarted({}, started);
  fixture.clock.advance(milliseconds(2000));
  wire::StepProgress progress;
  progress.set_job_id(id);
  progress.set_step(1);
  progress.set_steps(4);
  fixture.jobs.dispatcher().onProgress({}, progress);
  const v1::Job job = *fixture.jobs.get(id);
  CHECK(job.stages(0).step() == 1);
  CHECK(job.stages(0).steps() == 4);
  CHECK(job.stages(0).compute_start_time().seconds() == job.stages(0).start_time().seconds());
  CHECK(job.remaining().seconds() == 6);
  fixture.succeed(id);
  const JobId next = fixture.submit();
  CHECK(fixture.jobs.get(next)->remaining().seconds() == 2);  // as long as the first one computed
}

TEST_CASE("job_manager: hand-offs are shown in the order of the pipeline", "[supervisor]") {
  Fixture fixture(chainTopology({1, 2, 1}));
  const JobId id = fixture.submit();
  for (const auto& [edge, rank] : std::vector<std::pair<uint32_t, uint32_t>>{{1, 1}, {0, 0}, {1, 0}})
    fixture.jobs.addTransfer(id, EdgeIndex(edge), Rank(rank), {});
  std::string order;
  const v1::Job job = *fixture.jobs.get(id);
  for (const v1::EdgeTransfer& transfer : job.transfers())
    order += transfer.edge() + " " + std::to_string(transfer.rank()) + ", ";
  const std::vector<config::EdgeSpec>& edges = fixture.topology.edges;
  CHECK(order == edges[0].name + " 0, " + edges[1].name + " 0, " + edges[1].name + " 1, ");
}

TEST_CASE("job_manager: finished jobs beyond the retention are forgotten with their results", "[supervisor]") {
  Fixture fixture;
  const JobId id = fixture.submit();
  fixture.succeed(id);
  fixture.clock.advance(milliseconds(3600000));
  CHECK(fixture.jobs.nextDeadline() <= fixture.clock.now());
  fixture.jobs.onTimer();
  CHECK(fixture.jobs.get(id).status().code() == absl::StatusCode::kNotFound);
  CHECK(fixture.outputs.removed == std::vector<JobId>{id});
}

TEST_CASE("job_manager: counters add up whatever happens to the jobs", "[supervisor]") {
  Fixture fixture;
  const JobId a = fixture.submit();
  const JobId b = fixture.submit();
  const JobId c = fixture.submit();
  fixture.succeed(a);
  fixture.stageFailed(b, absl::StatusCode::kInternal);
  fixture.jobs.cancelAll("the daemon shuts down");
  fixture.stageFailed(c, absl::StatusCode::kCancelled);
  CHECK(fixture.metrics.submitted.Value() == 3);
  CHECK(fixture.metrics.ended.with("succeeded").Value() == 1);
  CHECK(fixture.metrics.ended.with("failed").Value() == 1);
  CHECK(fixture.metrics.ended.with("cancelled").Value() == 1);
  CHECK(fixture.metrics.running.Value() == 0);
  CHECK(fixture.jobs.idle());
}

}  // namespace
}  // namespace latentd::supervisor
