#include "runtime/supervisor/job_table.h"

#include <set>

#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace latentd::supervisor {
namespace {

using std::chrono::milliseconds;

struct Fixture {
  testing::ManualClock clock;
  JobTable table{clock, {.finished_max = 3, .age_max = milliseconds(1000)}, {"text", "decode"}};

  JobRecord& add(const JobId& id, const std::string& request = "") {
    clock.advance(milliseconds(1));
    return table.create(id, {}, 0, request);
  }
  void finish(const JobId& id) {
    table.transition(*table.find(id), v1::JOB_STATE_RUNNING);
    table.transition(*table.find(id), v1::JOB_STATE_SUCCEEDED);
  }
  std::vector<std::string> ids(const v1::ListJobsRequest& request) {
    const auto response = table.list(request, [](const JobRecord&, v1::Job&) {});
    REQUIRE(response.ok());
    std::vector<std::string> found;
    for (const v1::Job& job : response->jobs())
      found.push_back(job.id());
    return found;
  }
};

TEST_CASE("job_table: only the changes of the table are possible", "[supervisor]") {
  const std::set<std::pair<v1::JobState, v1::JobState>> allowed = {
      {v1::JOB_STATE_QUEUED, v1::JOB_STATE_RUNNING},       {v1::JOB_STATE_QUEUED, v1::JOB_STATE_CANCELLED},
      {v1::JOB_STATE_QUEUED, v1::JOB_STATE_FAILED},        {v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED},
      {v1::JOB_STATE_RUNNING, v1::JOB_STATE_FAILED},       {v1::JOB_STATE_RUNNING, v1::JOB_STATE_CANCELLING},
      {v1::JOB_STATE_CANCELLING, v1::JOB_STATE_CANCELLED}, {v1::JOB_STATE_RUNNING, v1::JOB_STATE_QUEUED}};
  for (int from = v1::JOB_STATE_QUEUED; from <= v1::JOB_STATE_CANCELLED; ++from) {
    for (int to = v1::JOB_STATE_QUEUED; to <= v1::JOB_STATE_CANCELLED; ++to) {
      const auto edge = std::pair(static_cast<v1::JobState>(from), static_cast<v1::JobState>(to));
      CHECK(canFollow(edge.first, edge.second) == (allowed.count(edge) != 0));
      if (isTerminal(edge.first)) CHECK(!canFollow(edge.first, edge.second));
    }
  }
}

TEST_CASE("job_table: a job has its times and stages", "[supervisor]") {
  Fixture fixture;
  const JobRecord& record = fixture.add("a");
  CHECK(record.job.stages_size() == 2);
  CHECK(record.job.has_create_time());
  CHECK(!record.job.has_start_time());
  fixture.clock.advance(milliseconds(1500));
  fixture.finish("a");
  CHECK(record.job.start_time().seconds() == record.job.create_time().seconds() + 1);
  CHECK(record.job.has_finish_time());
}

TEST_CASE("job_table: what a job's end cuts off ends with it, what had ended keeps its time", "[supervisor]") {
  Fixture fixture;
  JobRecord& record = fixture.add("a");
  fixture.table.transition(record, v1::JOB_STATE_RUNNING);
  fixture.table.transition(record, v1::JOB_STATE_CANCELLING);
  v1::StageProgress& text = *record.job.mutable_stages(0);
  *text.mutable_start_time() = record.job.start_time();
  *text.mutable_finish_time() = record.job.start_time();
  *record.job.mutable_stages(1)->mutable_start_time() = record.job.start_time();
  JobRecord& unstarted = fixture.add("b");
  fixture.clock.advance(milliseconds(2500));
  fixture.table.transition(record, v1::JOB_STATE_CANCELLED);
  fixture.table.transition(unstarted, v1::JOB_STATE_CANCELLED);
  fixture.clock.advance(milliseconds(2500));
  CHECK(text.finish_time().seconds() == record.job.start_time().seconds());
  CHECK(record.job.stages(1).finish_time().seconds() == record.job.start_time().seconds() + 2);
  CHECK(!unstarted.job.stages(0).has_finish_time());
}

TEST_CASE("job_table: a restarted job is as if nothing of it had run, and says why", "[supervisor]") {
  Fixture fixture;
  JobRecord& record = fixture.add("a");
  fixture.table.transition(record, v1::JOB_STATE_RUNNING);
  record.job.mutable_stages(0)->set_step(3);
  record.job.add_transfers()->set_edge("x");
  fixture.table.requeue(record, absl::UnavailableError("SIGKILL"), JobTable::Requeue::kLost);
  CHECK(record.job.state() == v1::JOB_STATE_QUEUED);
  CHECK(record.job.restarts() == 1);
  CHECK(record.job.restart_cause().message() == "SIGKILL");
  CHECK(!record.job.has_start_time());
  CHECK(record.job.transfers_size() == 0);
  REQUIRE(record.job.stages_size() == 2);
  CHECK(record.job.stages(0).step() == 0);
  CHECK(!record.job.stages(0).stage().empty());
  CHECK(fixture.table.unfinished() == 1);
  fixture.table.transition(record, v1::JOB_STATE_RUNNING);
  fixture.table.requeue(record, absl::UnavailableError("another's"), JobTable::Requeue::kDisplaced);
  CHECK(record.job.restarts() == 1);
  CHECK(record.job.displacements() == 1);
  CHECK(record.runs == 2);
}

TEST_CASE("job_table: a request id finds its job until that is forgotten", "[supervisor]") {
  Fixture fixture;
  fixture.add("a", "key");
  CHECK(fixture.table.findByRequest("key")->job.id() == "a");
  CHECK(fixture.table.findByRequest("other") == nullptr);
  fixture.finish("a");
  REQUIRE(fixture.table.remove("a").ok());
  CHECK(fixture.table.findByRequest("key") == nullptr);
  fixture.add("b", "key");
  CHECK(fixture.table.findByRequest("key")->job.id() == "b");
}

TEST_CASE("job_table: removal is for finished jobs", "[supervisor]") {
  Fixture fixture;
  fixture.add("a");
  CHECK(fixture.table.remove("b").code() == absl::StatusCode::kNotFound);
  CHECK(fixture.table.remove("a").code() == absl::StatusCode::kFailedPrecondition);
  fixture.finish("a");
  CHECK(fixture.table.remove("a").ok());
  CHECK(fixture.table.size() == 0);
}

TEST_CASE("job_table: finished jobs are forgotten by number and by age, unfinished ones never", "[supervisor]") {
  Fixture fixture;
  fixture.add("unfinished");
  for (const char* id : {"a", "b", "c", "d"})
    fixture.add(id);
  for (const char* id : {"b", "a", "c", "d"})
    fixture.finish(id);
  CHECK(fixture.table.nextExpiry() == fixture.clock.now());
  CHECK(fixture.table.expire() == std::vector<JobId>{"b"});
  CHECK(fixture.table.expire().empty());
  CHECK(fixture.table.nextExpiry() == fixture.clock.now() + milliseconds(1000));
  fixture.clock.advance(milliseconds(999));
  CHECK(fixture.table.expire().empty());
  fixture.clock.advance(milliseconds(1));
  CHECK(fixture.table.expire() == std::vector<JobId>{"a", "c", "d"});
  CHECK(fixture.table.size() == 1);
  CHECK(fixture.table.unfinished() == 1);
  CHECK(fixture.table.nextExpiry() == Clock::TimePoint::max());
}

TEST_CASE("job_table: pages are newest first and survive what happens between them", "[supervisor]") {
  Fixture fixture;
  for (const char* id : {"a", "b", "c", "d", "e"})
    fixture.add(id);
  v1::ListJobsRequest request;
  request.set_page_size(2);
  auto page = fixture.table.list(request, [](const JobRecord&, v1::Job& job) { job.set_queue_position(9); });
  REQUIRE(page.ok());
  CHECK(page->jobs(0).id() == "e");
  CHECK(page->jobs(0).queue_position() == 9);
  CHECK(page->jobs(1).id() == "d");
  fixture.add("f");
  fixture.finish("d");
  REQUIRE(fixture.table.remove("d").ok());
  request.set_page_token(page->next_page_token());
  CHECK(fixture.ids(request) == std::vector<std::string>{"c", "b"});
  request.set_page_size(0);
  CHECK(fixture.ids(request) == std::vector<std::string>{"c", "b", "a"});
}

TEST_CASE("job_table: the last page has no token, an exact one neither", "[supervisor]") {
  Fixture fixture;
  for (const char* id : {"a", "b"})
    fixture.add(id);
  v1::ListJobsRequest request;
  request.set_page_size(2);
  const auto page = fixture.table.list(request, [](const JobRecord&, v1::Job&) {});
  REQUIRE(page.ok());
  CHECK(page->next_page_token().empty());
}

TEST_CASE("job_table: filters by state and time", "[supervisor]") {
  Fixture fixture;
  for (const char* id : {"a", "b", "c"})
    fixture.add(id);
  fixture.finish("b");
  v1::ListJobsRequest request;
  request.add_states(v1::JOB_STATE_SUCCEEDED);
  CHECK(fixture.ids(request) == std::vector<std::string>{"b"});
  request.clear_states();
  *request.mutable_created_after() = fixture.table.find("a")->job.create_time();
  *request.mutable_created_before() = fixture.table.find("c")->job.create_time();
  CHECK(fixture.ids(request) == std::vector<std::string>{"b"});
}

TEST_CASE("job_table: bad pages are refused with the valid values", "[supervisor]") {
  Fixture fixture;
  const auto refusal = [&](const v1::ListJobsRequest& request) {
    return messageOf(fixture.table.list(request, [](const JobRecord&, v1::Job&) {}).status());
  };
  v1::ListJobsRequest request;
  request.set_page_size(1001);
  CHECK(refusal(request).find("page_size = 1001: must be at most 1000") != std::string::npos);
  request.set_page_size(1);
  for (const char* token : {"x", "1x", "-1", "99999999999999999999"}) {
    request.set_page_token(token);
    CHECK(refusal(request).find("page_token") != std::string::npos);
  }
  v1::ListJobsRequest filter;
  filter.add_states(static_cast<v1::JobState>(99));
  CHECK(refusal(filter) == "states = 99: must be of 1 to 6; none means all");
  filter.clear_states();
  filter.mutable_created_after()->set_seconds(20);
  filter.mutable_created_before()->set_seconds(10);
  CHECK(refusal(filter) ==
        "created_after = 1970-01-01T00:00:20Z: must not be later than created_before, 1970-01-01T00:00:10Z");
  filter.mutable_created_before()->set_seconds(20);
  CHECK(fixture.ids(filter).empty());
  filter.mutable_created_before()->set_nanos(-1);
  CHECK(refusal(filter) ==
        "created_before = 20 s and -1 ns: is no time; the years 1 to 9999, nanos from 0 to 999999999");
  filter.mutable_created_after()->set_seconds(int64_t{1} << 60);
  CHECK(refusal(filter).find("created_after = 1152921504606846976 s and 0 ns") == 0);
}

}  // namespace
}  // namespace latentd::supervisor
