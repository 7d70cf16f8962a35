#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/api/api_fixture.h"

namespace latentd::testing {
namespace {

using namespace std::chrono_literals;
using Code = grpc::StatusCode;

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i)
    text[i] = static_cast<char>((i * 31 + i / 251) & 0xff);
  return text;
}

struct Downloaded {
  grpc::Status status;
  std::string data;
  uint64_t total = 0;
};

Downloaded download(ApiFixture& fixture, const std::string& id, uint64_t offset) {
  v1::DownloadRequest request;
  request.set_id(id);
  request.set_offset(offset);
  const auto context = fixture.newContext();
  const auto reader = fixture.stub->Download(context.get(), request);
  Downloaded result;
  v1::DownloadChunk chunk;
  while (reader->Read(&chunk)) {
    CHECK(chunk.offset() == offset + result.data.size());
    result.data += chunk.data();
    result.total = chunk.total_bytes();
  }
  result.status = reader->Finish();
  return result;
}

size_t threadsOfThisProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace

TEST_CASE("api: a watch starts with the present, tells each change and ends with the job", "[api][watch]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("a red circle").id();
  const auto context = fixture.newContext();
  const auto reader = fixture.stub->Watch(context.get(), withId<v1::WatchJobRequest>(id));
  v1::Job job;
  REQUIRE(reader->Read(&job));
  CHECK(job.state() == v1::JOB_STATE_QUEUED);
  CHECK(job.queue_position() == 1);
  for (uint32_t step = 0; step < 3; ++step) {
    fixture.jobs.progress(id, "denoise", step, 3);
    REQUIRE(reader->Read(&job));
    CHECK(job.state() == v1::JOB_STATE_RUNNING);
    CHECK(job.stages(0).step() == step);
  }
  fixture.jobs.succeed(id, "video");
  REQUIRE(reader->Read(&job));
  CHECK(job.state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(job.result_bytes() == 5);
  CHECK_FALSE(reader->Read(&job));
  CHECK(reader->Finish().ok());
  CHECK(fixture.jobs.waitForWatches(0, 60s));
}

TEST_CASE("api: a trace comes track by track, or says why not", "[api][trace]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("a red circle").id();
  const auto fetch = [&](const std::string& job) {
    const auto context = fixture.newContext();
    const auto reader = fixture.stub->GetTrace(context.get(), withId<v1::GetTraceRequest>(job));
    std::vector<std::string> ranks;
    v1::TraceTrack track;
    while (reader->Read(&track))
      ranks.push_back(track.group() + "/" + std::to_string(track.rank()));
    return std::pair(ranks, reader->Finish().error_code());
  };
  const auto [ranks, code] = fetch(id);
  CHECK(ranks == std::vector<std::string>{"text/0", "denoise/0", "denoise/1", "/0"});
  CHECK(code == Code::OK);
  CHECK(fetch("nobody").second == Code::NOT_FOUND);
}

TEST_CASE("api: watching a job that has ended gives its end", "[api][watch]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("a red circle").id();
  fixture.jobs.fail(id, absl::UnavailableError("denoise rank 0: killed by SIGKILL in step 3"));
  const auto context = fixture.newContext();
  const auto reader = fixture.stub->Watch(context.get(), withId<v1::WatchJobRequest>(id));
  v1::Job job;
  REQUIRE(reader->Read(&job));
  CHECK(job.state() == v1::JOB_STATE_FAILED);
  CHECK(job.error().code() == static_cast<int>(Code::UNAVAILABLE));
  CHECK_FALSE(reader->Read(&job));
  CHECK(reader->Finish().ok());
}

TEST_CASE("api: a slow reader misses progress, never a state, and costs bounded memory", "[api][watch]") {
  ApiFixture fixture;
  const std::string id = fixture.submit(std::string(8'000, 'p')).id();
  const auto context = fixture.newContext();
  const auto reader = fixture.stub->Watch(context.get(), withId<v1::WatchJobRequest>(id));
  REQUIRE(fixture.jobs.waitForWatches(1, 60s));
  constexpr uint32_t kSteps = 5'000;
  for (uint32_t step = 0; step < kSteps; ++step)
    fixture.jobs.progress(id, "denoise", step, kSteps);
  v1::Job job;
  REQUIRE(fixture.call(&v1::Jobs::Stub::Cancel, withId<v1::CancelJobRequest>(id), &job).ok());
  for (uint32_t step = 0; step < kSteps; ++step)
    fixture.jobs.progress(id, "denoise", step, kSteps);
  fixture.jobs.finishCancel(id);

  std::vector<v1::JobState> states;
  uint32_t messages = 0;
  while (reader->Read(&job)) {
    ++messages;
    if (states.empty() || states.back() != job.state()) states.push_back(job.state());
  }
  CHECK(reader->Finish().ok());
  CHECK(states == std::vector<v1::JobState>{v1::JOB_STATE_QUEUED, v1::JOB_STATE_RUNNING, v1::JOB_STATE_CANCELLING,
                                            v1::JOB_STATE_CANCELLED});
  CAPTURE(messages);
  CHECK(messages < kSteps);
  CHECK(fixture.metrics.watch_skipped.Value() + messages == 2 * kSteps + 3);
}

TEST_CASE("api: a client that goes away ends its watch", "[api][watch]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("a red circle").id();
  {
    const auto context = fixture.newContext();
    const auto reader = fixture.stub->Watch(context.get(), withId<v1::WatchJobRequest>(id));
    v1::Job job;
    REQUIRE(reader->Read(&job));
    context->TryCancel();
    CHECK(reader->Finish().error_code() == Code::CANCELLED);
  }
  CHECK(fixture.jobs.waitForWatches(0, 60s));
  fixture.jobs.progress(id, "denoise", 1, 2);
  // The stream is counted until gRPC says that it is over.
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (fixture.metrics.watchers.Value() != 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  CHECK(fixture.metrics.watchers.Value() == 0);
}

TEST_CASE("api: a download is the result, whole or from any offset", "[api][download]") {
  ApiFixture fixture;
  const std::string content = pattern(3'000'001);
  const std::string id = fixture.submit("a red circle").id();
  CHECK(download(fixture, id, 0).status.error_code() == Code::FAILED_PRECONDITION);
  fixture.jobs.succeed(id, content);
  for (const uint64_t offset : {0u, 1u, 262'144u, 1'234'567u, 3'000'000u, 3'000'001u}) {
    CAPTURE(offset);
    const Downloaded got = download(fixture, id, offset);
    CHECK(got.status.ok());
    CHECK((got.data == content.substr(offset)));
    if (offset < content.size()) CHECK(got.total == content.size());
  }
  const Downloaded beyond = download(fixture, id, 3'000'002);
  CHECK(beyond.status.error_code() == Code::OUT_OF_RANGE);
  CHECK(beyond.status.error_message().find("3000001") != std::string::npos);
}

TEST_CASE("api: an empty result is an empty download", "[api][download]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("nothing").id();
  fixture.jobs.succeed(id, "");
  const Downloaded got = download(fixture, id, 0);
  CHECK(got.status.ok());
  CHECK(got.data.empty());
}

TEST_CASE("api: a result that is shorter than promised is DATA_LOSS", "[api][download]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("a red circle").id();
  fixture.jobs.succeed(id, pattern(700'000), 300'000);
  const Downloaded got = download(fixture, id, 0);
  CHECK(got.status.error_code() == Code::DATA_LOSS);
  CHECK(got.status.error_message().find("300000 of 700000") != std::string::npos);
}

TEST_CASE("api: a download outlives the job that is deleted meanwhile, and stops with its client", "[api][download]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("a red circle").id();
  fixture.jobs.succeed(id, pattern(20'000'000));
  auto context = fixture.newContext();
  auto reader = fixture.stub->Download(context.get(), withId<v1::DownloadRequest>(id));
  v1::DownloadChunk chunk;
  REQUIRE(reader->Read(&chunk));
  v1::DeleteJobResponse deleted;
  REQUIRE(fixture.call(&v1::Jobs::Stub::Delete, withId<v1::DeleteJobRequest>(id), &deleted).ok());
  REQUIRE(reader->Read(&chunk));
  // Back-pressure: what the reader has not taken was not sent, but for the window of the connection.
  CHECK(fixture.metrics.download_bytes.Value() < 15'000'000);
  context->TryCancel();
  CHECK(reader->Finish().error_code() == Code::CANCELLED);
}

TEST_CASE("api: 200 slow clients hold no threads", "[api][watch]") {
  ApiFixture fixture;
  const std::string running = fixture.submit("running").id();
  const std::string done = fixture.submit("done").id();
  fixture.jobs.succeed(done, pattern(1'000'000));
  fixture.jobs.progress(running, "denoise", 0, 100);
  const size_t threads_before = threadsOfThisProcess();

  struct Client {
    std::unique_ptr<v1::Jobs::Stub> stub;
    std::unique_ptr<grpc::ClientContext> watch_context, download_context;
    std::unique_ptr<grpc::ClientReader<v1::Job>> watch;
    std::unique_ptr<grpc::ClientReader<v1::DownloadChunk>> download;
  };
  std::vector<Client> clients(200);
  for (Client& client : clients) {
    client.stub = v1::Jobs::NewStub(fixture.connect());
    client.watch_context = fixture.newContext();
    client.watch = client.stub->Watch(client.watch_context.get(), withId<v1::WatchJobRequest>(running));
    client.download_context = fixture.newContext();
    client.download = client.stub->Download(client.download_context.get(), withId<v1::DownloadRequest>(done));
  }
  REQUIRE(fixture.jobs.waitForWatches(200, 60s));
  CHECK(threadsOfThisProcess() < threads_before + 20);
  for (uint32_t step = 1; step <= 100; ++step)
    fixture.jobs.progress(running, "denoise", step, 100);
  fixture.submit("others are served");
  fixture.jobs.succeed(running, "video");

  size_t ended = 0, downloaded = 0;
  for (Client& client : clients) {
    v1::Job job;
    while (client.watch->Read(&job)) {
    }
    ended += client.watch->Finish().ok() && job.state() == v1::JOB_STATE_SUCCEEDED ? 1 : 0;
    v1::DownloadChunk chunk;
    while (client.download->Read(&chunk))
      downloaded += chunk.data().size();
    CHECK(client.download->Finish().ok());
  }
  CHECK(ended == 200);
  CHECK(downloaded == 200u * 1'000'000u);
  CHECK(fixture.jobs.waitForWatches(0, 60s));
}

TEST_CASE("api: clients that vanish at random leave nothing behind", "[api][watch]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("running").id();
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 8; ++seed) {
    threads.emplace_back([&, seed] {
      const auto stub = v1::Jobs::NewStub(fixture.connect());
      for (unsigned round = 0; round < 25; ++round) {
        const auto context = fixture.newContext();
        const auto reader = stub->Watch(context.get(), withId<v1::WatchJobRequest>(id));
        v1::Job job;
        for (unsigned reads = 0; reads < (seed + round) % 4; ++reads)
          reader->Read(&job);
        context->TryCancel();
        reader->Finish();
      }
    });
  }
  std::thread worker([&] {
    for (uint32_t step = 0; step < 20'000; ++step)
      fixture.jobs.progress(id, "denoise", step, 20'000);
  });
  worker.join();
  fixture.jobs.succeed(id, "video");
  for (std::thread& thread : threads)
    thread.join();
  CHECK(fixture.jobs.waitForWatches(0, 60s));
}

}  // namespace latentd::testing
