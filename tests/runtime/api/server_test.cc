#include "runtime/api/server.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "proto/rpc_status.pb.h"
#include "tests/runtime/api/api_fixture.h"

namespace latentd::testing {
namespace {

using namespace std::chrono_literals;
using Code = grpc::StatusCode;

struct RawAnswer {
  grpc::Status status;
  std::string bytes;
};

grpc::ByteBuffer toBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string toString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  buffer.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

// One message each way, as bytes: for the services whose messages have no C++ here, and for malformed ones.
RawAnswer callRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 30s);
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  RawAnswer answer;
  stream->StartCall(&tag);
  queue.Next(&tag, &ok);
  stream->WriteLast(toBuffer(bytes), grpc::WriteOptions(), &tag);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer received;
  stream->Read(&received, &tag);
  queue.Next(&tag, &ok);
  if (ok) answer.bytes = toString(received);
  stream->Finish(&answer.status, &tag);
  queue.Next(&tag, &ok);
  return answer;
}

// grpc.health.v1.HealthCheckRequest{service} and HealthCheckResponse{status}: SERVING is 1, NOT_SERVING is 2.
int healthOf(const ApiFixture& fixture, const std::string& service) {
  const std::string request = service.empty() ? "" : std::string("\x0a") + static_cast<char>(service.size()) + service;
  const RawAnswer answer = callRaw(fixture.channel, "/grpc.health.v1.Health/Check", request);
  REQUIRE(answer.status.ok());
  REQUIRE(answer.bytes.size() == 2);
  return answer.bytes[1];
}

// Health is polled, so it follows a little later.
bool healthBecomes(const ApiFixture& fixture, const std::string& service, int wanted) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (healthOf(fixture, service) != wanted) {
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("api: grpc.health.v1 follows readiness, Admin stays up while the daemon lives", "[api][health]") {
  ApiFixture fixture;
  CHECK(healthBecomes(fixture, "", 1));
  CHECK(healthBecomes(fixture, "latentd.v1.Jobs", 1));
  fixture.jobs.setReady(absl::UnavailableError("denoise rank 0: no heartbeat"));
  CHECK(healthBecomes(fixture, "", 2));
  CHECK(healthOf(fixture, "latentd.v1.Jobs") == 2);
  CHECK(healthOf(fixture, "latentd.v1.Admin") == 1);
  fixture.jobs.setReady(absl::OkStatus());
  CHECK(healthBecomes(fixture, "latentd.v1.Jobs", 1));
  const RawAnswer unknown = callRaw(fixture.channel, "/grpc.health.v1.Health/Check", "\x0a\x02no");
  CHECK(unknown.status.error_code() == Code::NOT_FOUND);
}

TEST_CASE("api: reflection lists the services and describes them", "[api][reflection]") {
  ApiFixture fixture;
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const RawAnswer services = callRaw(fixture.channel, method, std::string("\x3a\x01*", 3));  // list_services = "*"
  REQUIRE(services.status.ok());
  for (const char* service : {"latentd.v1.Jobs", "latentd.v1.Admin", "grpc.health.v1.Health"}) {
    CAPTURE(service);
    CHECK(services.bytes.find(service) != std::string::npos);
  }
  const std::string symbol = "latentd.v1.Jobs";  // file_containing_symbol
  const RawAnswer file =
      callRaw(fixture.channel, method, std::string("\x22") + static_cast<char>(symbol.size()) + symbol);
  CHECK(file.bytes.find("proto/api.proto") != std::string::npos);
}

TEST_CASE("api: a text that is not UTF-8 is refused with its field and the connection lives on", "[api]") {
  ApiFixture fixture;
  struct Bad {
    const char* method;
    std::string bytes;
    std::string words;
  };
  const std::string id("\x0a\x03v\xff\xfe", 5);
  const std::string words_of_id = "id is not UTF-8: byte 0xff at offset 1; send it as UTF-8";
  const std::vector<Bad> calls = {
      // parameters.frames = 5 stands before the prompt and a field of a later version, 100, before the negative one.
      {"Submit", std::string("\x0a\x06\x18\x05\x0a\x02\xff\xfe", 8), "prompt is not UTF-8: byte 0xff at offset 0"},
      {"Submit", std::string("\x0a\x0c\x0a\x01x\xa2\x06\x01\xff\x12\x03ok\xc3", 14),
       "negative_prompt is not UTF-8: byte 0xc3"},
      {"Submit", std::string("\x0a\x03\x0a\x01x\x2a\x01\x80", 8), "request_id is not UTF-8: byte 0x80 at offset 0"},
      {"Get", id, words_of_id},
      {"Cancel", id, words_of_id},
      {"Delete", id, words_of_id},
      {"Watch", id, words_of_id},
      {"Download", id, words_of_id},
      {"GetTrace", id, words_of_id},
      {"List", std::string("\x12\x01\xff", 3), "page_token is not UTF-8: byte 0xff at offset 0"},
  };
  for (const Bad& bad : calls) {
    CAPTURE(bad.method, bad.words);
    const RawAnswer answer = callRaw(fixture.channel, std::string("/latentd.v1.Jobs/") + bad.method, bad.bytes);
    CHECK(answer.status.error_code() == Code::INVALID_ARGUMENT);
    CHECK(answer.status.error_message().rfind(bad.words, 0) == 0);
    CHECK(fixture.metrics.requests.with(bad.method, "INVALID_ARGUMENT").Value() >= 1);
    internal::v1::RpcStatus details;
    REQUIRE(details.ParseFromString(answer.status.error_details()));
    CHECK(details.code() == static_cast<int>(Code::INVALID_ARGUMENT));
    CHECK(details.message() == answer.status.error_message());
    REQUIRE(details.details_size() == 1);
    CHECK(details.details(0).type_url() == "type.googleapis.com/google.rpc.BadRequest");
    internal::v1::BadRequest request;
    REQUIRE(request.ParseFromString(details.details(0).value()));
    REQUIRE(request.field_violations_size() == 1);
    CHECK(request.field_violations(0).field() == bad.words.substr(0, bad.words.find(' ')));
    CHECK(request.field_violations(0).description() == details.message());
  }
  CHECK(fixture.jobs.jobs().empty());
  CHECK(fixture.metrics.watchers.Value() == 0);
  CHECK(fixture.metrics.downloads.Value() == 0);
  fixture.submit("still served");
}

TEST_CASE("api: bytes that are no request are refused and the connection lives on", "[api]") {
  ApiFixture fixture;
  // Cut in a length, in a message, and in a number; a length beyond all bytes; the end of a group that never began.
  for (const std::string& bytes :
       {std::string("\x0a\x7f\x0a", 3), std::string("\x0a\x02\x0a\x05", 4), std::string("\x10\xff", 2),
        std::string("\x0a\xff\xff\xff\xff\x0f", 6), std::string("\x0c", 1)}) {
    const RawAnswer answer = callRaw(fixture.channel, "/latentd.v1.Jobs/Submit", bytes);
    CHECK(answer.status.error_code() == Code::INVALID_ARGUMENT);
    CHECK(answer.status.error_message().find("no latentd.v1.SubmitRequest") != std::string::npos);
    CHECK(answer.status.error_details().empty());
  }
  CHECK(fixture.jobs.jobs().empty());
  CHECK(callRaw(fixture.channel, "/latentd.v1.Jobs/Nothing", "").status.error_code() == Code::UNIMPLEMENTED);
  fixture.submit("still served");
}

TEST_CASE("api: a taken port names its holder", "[api]") {
  ApiFixture fixture;
  api::ServerOptions options;
  options.port = fixture.server->port();
  metrics::Registry registry;
  metrics::ApiMetrics metrics(registry);
  const auto second = api::Server::start(options, fixture.jobs, metrics);
  REQUIRE(!second.ok());
  CHECK(second.status().code() == absl::StatusCode::kResourceExhausted);
  const std::string message = messageOf(second.status());
  CAPTURE(message);
  CHECK(message.find(fixture.server->address()) != std::string::npos);
  CHECK(message.find("pid " + std::to_string(getpid()) + " (") != std::string::npos);
}

TEST_CASE("api: an address of another host is refused", "[api]") {
  FakeJobService jobs;
  metrics::Registry registry;
  metrics::ApiMetrics metrics(registry);
  api::ServerOptions options;
  options.host = "192.0.2.1";  // reserved for documentation: no host has it
  options.port = 7411;
  const auto server = api::Server::start(options, jobs, metrics);
  REQUIRE(!server.ok());
  CHECK(messageOf(server.status()).find("192.0.2.1:7411") != std::string::npos);
}

TEST_CASE("api: stopping ends streams after the grace period and frees the port", "[api]") {
  ApiFixture fixture;
  const std::string id = fixture.submit("running").id();
  const auto context = fixture.newContext();
  const auto reader = fixture.stub->Watch(context.get(), withId<v1::WatchJobRequest>(id));
  v1::Job job;
  REQUIRE(reader->Read(&job));
  const uint16_t port = fixture.server->port();
  const auto before = std::chrono::steady_clock::now();
  fixture.server->stop(200ms);
  CHECK(std::chrono::steady_clock::now() - before < 10s);
  CHECK_FALSE(reader->Read(&job));
  CHECK(!reader->Finish().ok());
  CHECK(fixture.jobs.openWatches() == 0);
  fixture.server->stop(200ms);

  api::ServerOptions options;
  options.port = port;
  metrics::Registry registry;
  metrics::ApiMetrics metrics(registry);
  const auto second = api::Server::start(options, fixture.jobs, metrics);
  CAPTURE(messageOf(second.status()));
  CHECK(second.ok());
}

}  // namespace latentd::testing
