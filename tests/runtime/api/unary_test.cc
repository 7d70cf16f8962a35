#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/api/api_fixture.h"

namespace latentd::testing {
namespace {

using Code = grpc::StatusCode;

}  // namespace

TEST_CASE("api: a submitted job is echoed with its effective parameters", "[api]") {
  ApiFixture fixture;
  v1::SubmitRequest request;
  request.mutable_parameters()->set_prompt("a red circle moving left");
  request.mutable_parameters()->set_steps(8);
  request.set_priority(5);
  v1::Job job;
  REQUIRE(fixture.call(&v1::Jobs::Stub::Submit, request, &job).ok());
  CHECK(job.state() == v1::JOB_STATE_QUEUED);
  CHECK(job.queue_position() == 1);
  CHECK(job.priority() == 5);
  CHECK(job.parameters().steps() == 8);
  CHECK(job.parameters().frames() == 17);
  CHECK(job.parameters().has_seed());
  CHECK(job.parameters().format() == v1::OUTPUT_FORMAT_MP4);

  v1::Job got;
  REQUIRE(fixture.call(&v1::Jobs::Stub::Get, withId<v1::GetJobRequest>(job.id()), &got).ok());
  CHECK(got.SerializeAsString() == job.SerializeAsString());
}

TEST_CASE("api: a repeated request id returns the first job", "[api]") {
  ApiFixture fixture;
  v1::SubmitRequest request;
  request.mutable_parameters()->set_prompt("a blue square");
  request.set_request_id("5f0c");
  v1::Job first, second;
  REQUIRE(fixture.call(&v1::Jobs::Stub::Submit, request, &first).ok());
  REQUIRE(fixture.call(&v1::Jobs::Stub::Submit, request, &second).ok());
  CHECK(first.id() == second.id());
  CHECK(fixture.jobs.jobs().size() == 1);
}

TEST_CASE("api: a refused submission passes the supervisor's words on and harms nobody", "[api]") {
  ApiFixture fixture;
  for (const std::string& prompt : {std::string(), std::string(100'001, 'x')}) {
    v1::SubmitRequest request;
    request.mutable_parameters()->set_prompt(prompt);
    v1::Job job;
    const grpc::Status status = fixture.call(&v1::Jobs::Stub::Submit, request, &job);
    CHECK(status.error_code() == Code::INVALID_ARGUMENT);
    CHECK(status.error_message().find(prompt.empty() ? "prompt: is empty" : "100001 bytes") != std::string::npos);
  }
  CHECK(fixture.jobs.jobs().empty());
  fixture.submit("still served");
}

TEST_CASE("api: a request beyond the size limit is refused and the connection lives on", "[api]") {
  ApiFixture fixture;
  v1::SubmitRequest request;
  request.mutable_parameters()->set_prompt(std::string(2 << 20, 'x'));
  v1::Job job;
  CHECK(fixture.call(&v1::Jobs::Stub::Submit, request, &job).error_code() == Code::RESOURCE_EXHAUSTED);
  fixture.submit("still served");
}

TEST_CASE("api: an unknown id is NOT_FOUND everywhere", "[api]") {
  ApiFixture fixture;
  for (const std::string& id : {std::string(), std::string("nobody")}) {
    v1::Job job;
    v1::DeleteJobResponse deleted;
    const Code wanted = Code::NOT_FOUND;
    CHECK(fixture.call(&v1::Jobs::Stub::Get, withId<v1::GetJobRequest>(id), &job).error_code() == wanted);
    CHECK(fixture.call(&v1::Jobs::Stub::Cancel, withId<v1::CancelJobRequest>(id), &job).error_code() == wanted);
    CHECK(fixture.call(&v1::Jobs::Stub::Delete, withId<v1::DeleteJobRequest>(id), &deleted).error_code() == wanted);
    const auto watch_context = fixture.newContext();
    CHECK(fixture.stub->Watch(watch_context.get(), withId<v1::WatchJobRequest>(id))->Finish().error_code() == wanted);
    const auto download_context = fixture.newContext();
    CHECK(fixture.stub->Download(download_context.get(), withId<v1::DownloadRequest>(id))->Finish().error_code() ==
          wanted);
  }
  CHECK(fixture.metrics.watchers.Value() == 0);
  CHECK(fixture.metrics.downloads.Value() == 0);
}

TEST_CASE("api: cancel and delete follow the job's state", "[api]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("a green circle").id();
  v1::Job job;
  v1::DeleteJobResponse deleted;
  fixture.jobs.progress(id, "denoise", 1, 4);
  CHECK(fixture.call(&v1::Jobs::Stub::Delete, withId<v1::DeleteJobRequest>(id), &deleted).error_code() ==
        Code::FAILED_PRECONDITION);
  for (int again = 0; again < 2; ++again) {
    REQUIRE(fixture.call(&v1::Jobs::Stub::Cancel, withId<v1::CancelJobRequest>(id), &job).ok());
    CHECK(job.state() == v1::JOB_STATE_CANCELLING);
  }
  fixture.jobs.finishCancel(id);
  REQUIRE(fixture.call(&v1::Jobs::Stub::Cancel, withId<v1::CancelJobRequest>(id), &job).ok());
  CHECK(job.state() == v1::JOB_STATE_CANCELLED);
  REQUIRE(fixture.call(&v1::Jobs::Stub::Delete, withId<v1::DeleteJobRequest>(id), &deleted).ok());
  CHECK(fixture.call(&v1::Jobs::Stub::Get, withId<v1::GetJobRequest>(id), &job).error_code() == Code::NOT_FOUND);

  const std::string done = fixture.submit("done").id();
  fixture.jobs.succeed(done, "video");
  CHECK(fixture.call(&v1::Jobs::Stub::Cancel, withId<v1::CancelJobRequest>(done), &job).error_code() ==
        Code::FAILED_PRECONDITION);
}

TEST_CASE("api: a full queue and a draining daemon refuse with the right code", "[api]") {
  ApiFixture fixture({.queue_max = 2});
  fixture.submit("one");
  fixture.submit("two");
  v1::SubmitRequest request;
  request.mutable_parameters()->set_prompt("three");
  v1::Job job;
  CHECK(fixture.call(&v1::Jobs::Stub::Submit, request, &job).error_code() == Code::RESOURCE_EXHAUSTED);

  v1::DrainRequest drain;
  v1::DrainResponse left;
  drain.mutable_deadline()->set_seconds(-1);
  CHECK(fixture.callAdmin(&v1::Admin::Stub::Drain, drain, &left).error_code() == Code::INVALID_ARGUMENT);
  drain.mutable_deadline()->set_seconds(3);
  drain.mutable_deadline()->set_nanos(250'000'000);
  REQUIRE(fixture.callAdmin(&v1::Admin::Stub::Drain, drain, &left).ok());
  CHECK(left.jobs_left() == 2);
  CHECK(fixture.jobs.drainDeadline() == std::chrono::milliseconds(3250));
  drain.clear_deadline();
  REQUIRE(fixture.callAdmin(&v1::Admin::Stub::Drain, drain, &left).ok());
  CHECK(fixture.jobs.drainDeadline() == std::chrono::minutes(7));
  CHECK(fixture.call(&v1::Jobs::Stub::Submit, request, &job).error_code() == Code::UNAVAILABLE);
}

TEST_CASE("api: lists come in pages, newest first, each job once", "[api]") {
  ApiFixture fixture;
  for (int i = 0; i < 120; ++i)
    fixture.submit("job " + std::to_string(i));
  for (const uint32_t page_size : {0u, 1u, 7u, 1000u}) {
    CAPTURE(page_size);
    std::vector<std::string> prompts;
    v1::ListJobsRequest request;
    request.set_page_size(page_size);
    do {
      v1::ListJobsResponse page;
      REQUIRE(fixture.call(&v1::Jobs::Stub::List, request, &page).ok());
      CHECK(static_cast<uint32_t>(page.jobs_size()) <= (page_size == 0 ? 50 : page_size));
      for (const v1::Job& job : page.jobs())
        prompts.push_back(job.parameters().prompt());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    REQUIRE(prompts.size() == 120);
    for (int i = 0; i < 120; ++i)
      CHECK(prompts[i] == "job " + std::to_string(119 - i));
  }
}

TEST_CASE("api: filters and their errors", "[api]") {
  ApiFixture fixture;
  const std::string done = fixture.submit("done").id();
  fixture.submit("waiting");
  fixture.jobs.succeed(done, "video");
  v1::ListJobsRequest request;
  v1::ListJobsResponse page;
  request.add_states(v1::JOB_STATE_SUCCEEDED);
  request.add_states(v1::JOB_STATE_FAILED);
  REQUIRE(fixture.call(&v1::Jobs::Stub::List, request, &page).ok());
  REQUIRE(page.jobs_size() == 1);
  CHECK(page.jobs(0).id() == done);

  request.set_page_token("nonsense");
  CHECK(fixture.call(&v1::Jobs::Stub::List, request, &page).error_code() == Code::INVALID_ARGUMENT);
}

TEST_CASE("api: a page of long prompts stays below a client's message limit", "[api]") {
  ApiFixture fixture;
  for (int i = 0; i < 100; ++i)
    fixture.submit(std::string(90'000, 'p'));
  std::set<std::string> ids;
  v1::ListJobsRequest request;
  request.set_page_size(100);
  do {
    v1::ListJobsResponse page;
    REQUIRE(fixture.call(&v1::Jobs::Stub::List, request, &page).ok());
    for (const v1::Job& job : page.jobs())
      ids.insert(job.id());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  CHECK(ids.size() == 100);
}

TEST_CASE("api: flight records are those of one group, or of all, beside those of the last failure", "[api]") {
  ApiFixture fixture;
  v1::GetFlightRecordsRequest request;
  v1::FlightRecords records;
  REQUIRE(fixture.callAdmin(&v1::Admin::Stub::GetFlightRecords, request, &records).ok());
  REQUIRE(records.groups_size() == 2);
  CHECK(records.groups(0).ranks_size() == 2);
  CHECK(!records.groups(0).ended());
  CHECK(records.groups(1).ended());
  request.set_group("nobody");
  CHECK(fixture.callAdmin(&v1::Admin::Stub::GetFlightRecords, request, &records).error_code() ==
        grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("api: topology, edges and version", "[api]") {
  ApiFixture fixture;
  v1::Topology topology;
  REQUIRE(fixture.callAdmin(&v1::Admin::Stub::GetTopology, v1::GetTopologyRequest(), &topology).ok());
  CHECK(topology.groups_size() == 3);
  v1::GetEdgesResponse edges;
  REQUIRE(fixture.callAdmin(&v1::Admin::Stub::GetEdges, v1::GetEdgesRequest(), &edges).ok());
  CHECK(edges.edges_size() == 2);
  v1::Version version;
  REQUIRE(fixture.callAdmin(&v1::Admin::Stub::GetVersion, v1::GetVersionRequest(), &version).ok());
  CHECK(version.api() == "latentd.v1");
  CHECK(!version.version().empty());
}

TEST_CASE("api: calls are counted by method and result", "[api]") {
  ApiFixture fixture;
  fixture.submit("one");
  v1::Job job;
  fixture.call(&v1::Jobs::Stub::Get, withId<v1::GetJobRequest>("nobody"), &job);
  CHECK(fixture.metrics.requests.with("Submit", "OK").Value() == 1);
  CHECK(fixture.metrics.requests.with("Get", "NOT_FOUND").Value() == 1);
}

}  // namespace latentd::testing
