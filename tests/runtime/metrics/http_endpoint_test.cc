#include "runtime/metrics/http_endpoint.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/metrics/component_metrics.h"
#include "tests/support/catch.h"
#include "tests/support/slack.h"

namespace latentd::metrics {
namespace {

struct Fixture {
  Registry registry;
  JobMetrics jobs{registry};
  std::atomic<bool> is_ready{true};
  std::unique_ptr<HttpEndpoint> endpoint;

  Fixture() {
    HttpEndpointOptions options;
    options.live = [] { return absl::OkStatus(); };
    options.ready = [this] {
      return is_ready ? absl::OkStatus() : absl::UnavailableError("denoise rank 0: no heartbeat for 6 s");
    };
    options.config_text = [](uint16_t port) { return "http: 127.0.0.1:" + std::to_string(port) + "\n"; };
    auto started = HttpEndpoint::start(std::move(options), registry);
    REQUIRE(started.ok());
    endpoint = std::move(started).value();
  }

  httplib::Client client() const {
    httplib::Client made("127.0.0.1", endpoint->port());
    made.set_read_timeout(10);
    return made;
  }
};

UniqueFd connectTo(uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return socket;
}

}  // namespace

TEST_CASE("http: metrics, health and configuration are served", "[metrics][http]") {
  Fixture fixture;
  fixture.jobs.ended.with("succeeded").Increment();
  auto metrics = fixture.client().Get("/metrics");
  REQUIRE(metrics);
  CHECK(metrics->status == 200);
  CHECK(metrics->get_header_value("Content-Type") == "text/plain; version=0.0.4; charset=utf-8");
  CHECK(metrics->body.find("latentd_jobs_total{result=\"succeeded\"} 1") != std::string::npos);
  auto health = fixture.client().Get("/healthz");
  REQUIRE(health);
  CHECK(health->status == 200);
  CHECK(health->body == "ok\n");
  auto config = fixture.client().Get("/config");
  REQUIRE(config);
  CHECK(config->body == "http: 127.0.0.1:" + std::to_string(fixture.endpoint->port()) + "\n");
}

TEST_CASE("http: alive is not ready, and the reason is told", "[metrics][http]") {
  Fixture fixture;
  fixture.is_ready = false;
  auto ready = fixture.client().Get("/readyz");
  REQUIRE(ready);
  CHECK(ready->status == 503);
  CHECK(ready->body == "denoise rank 0: no heartbeat for 6 s\n");
  CHECK(fixture.client().Get("/healthz")->status == 200);
  fixture.is_ready = true;
  CHECK(fixture.client().Get("/readyz")->status == 200);
}

TEST_CASE("http: other paths and methods are refused with a pointer", "[metrics][http]") {
  Fixture fixture;
  auto missing = fixture.client().Get("/nothing");
  REQUIRE(missing);
  CHECK(missing->status == 404);
  CHECK(missing->body.find("/metrics") != std::string::npos);
  for (const char* path : {"/metrics", "/healthz", "/readyz", "/config"}) {
    const auto isRefused = [](const httplib::Result& answer) {
      return answer && answer->status == 405 && answer->get_header_value("Allow") == "GET, HEAD";
    };
    CHECK(isRefused(fixture.client().Post(path, "x", "text/plain")));
    CHECK(isRefused(fixture.client().Put(path, "x", "text/plain")));
    CHECK(isRefused(fixture.client().Delete(path)));
    CHECK(fixture.client().Head(path)->status == 200);
  }
  CHECK(fixture.client().Post("/nothing", "x", "text/plain")->status == 404);
}

TEST_CASE("http: a taken port names its holder", "[metrics][http]") {
  Fixture fixture;
  HttpEndpointOptions second;
  second.port = fixture.endpoint->port();
  second.live = second.ready = [] { return absl::OkStatus(); };
  auto refused = HttpEndpoint::start(std::move(second), fixture.registry);
  REQUIRE(!refused.ok());
  CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  const std::string message = messageOf(refused.status());
  CAPTURE(message);
  CHECK(message.find("pid " + std::to_string(getpid()) + " (") != std::string::npos);
  CHECK(message.find(std::to_string(fixture.endpoint->port())) != std::string::npos);
}

TEST_CASE("http: an address of another host is refused", "[metrics][http]") {
  Registry registry;
  HttpEndpointOptions options;
  options.host = "192.0.2.1";  // reserved for documentation: no host has it
  options.port = 7412;
  options.live = options.ready = [] { return absl::OkStatus(); };
  auto refused = HttpEndpoint::start(std::move(options), registry);
  REQUIRE(!refused.ok());
  CHECK(messageOf(refused.status()).find("192.0.2.1:7412") != std::string::npos);
}

TEST_CASE("http: of many that come at once nobody has to come again", "[metrics][http]") {
  Fixture fixture;
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.push_back(connectTo(fixture.endpoint->port()));
    tcp_info info{};
    socklen_t size = sizeof(info);
    REQUIRE(::getsockopt(crowd.back().get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    CHECK(info.tcpi_total_retrans == 0);
  }
}

TEST_CASE("http: silent connections do not keep others out for long", "[metrics][http]") {
  Fixture fixture;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i)
    silent.push_back(connectTo(fixture.endpoint->port()));
  SECTION("from the beginning") {}
  SECTION("in the middle of a request") {
    const std::string half = "GET /metrics HTTP/1.1\r\nHost: ";
    for (const UniqueFd& connection : silent)
      REQUIRE(::send(connection.get(), half.data(), half.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(half.size()));
  }
  httplib::Client client = fixture.client();
  client.set_read_timeout(testing::withSlack(std::chrono::milliseconds(5000)));
  auto health = client.Get("/healthz");
  REQUIRE(health);
  CHECK(health->status == 200);
}

TEST_CASE("http: many clients at once, and stopping while they call", "[metrics][http]") {
  auto fixture = std::make_unique<Fixture>();
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, client = std::make_shared<httplib::Client>(fixture->client())] {
      for (int k = 0; k < 10; ++k) {
        if (auto answer = client->Get("/metrics"); answer && answer->status == 200) ++served;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  CHECK(served == 160);
  const UniqueFd silent = connectTo(fixture->endpoint->port());
  fixture.reset();
}

}  // namespace latentd::metrics
