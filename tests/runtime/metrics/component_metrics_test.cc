#include "runtime/metrics/component_metrics.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/catch.h"

namespace latentd::metrics {
namespace {

// Every component registered and every family used once, so that each has a sample.
struct AllMetrics {
  Registry registry;
  JobMetrics job{registry};
  EdgeMetrics edge{registry};
  WorkerMetrics worker{registry};
  EncoderMetrics encoder{registry};
  ApiMetrics api{registry};

  AllMetrics() {
    registerBuildInfo(registry, "1.2.3");
    edge.info.with("edge", "shm").Set(1);
    job.duration.with("succeeded").Observe(3);
    for (auto* family : {&job.stage, &job.input_wait, &job.publish, &job.cancel})
      family->with("denoise").Observe(0.1);
    job.stage_failures.with("denoise", "UNAVAILABLE").Increment();
    job.denoise_step.Observe(0.25);
    job.queue_wait.Observe(0.25);
    for (auto* family :
         {&edge.bytes, &edge.handoffs, &edge.unpooled, &edge.stale_dropped, &edge.read_ahead, &edge.reread}) {
      family->with("text.encode->denoise.denoise").Increment(2);
    }
    edge.published.with("text.encode->denoise.denoise", "0").Increment(2);
    edge.read.with("text.encode->denoise.denoise", "1").Increment(2);
    for (auto* family : {&edge.handoff, &edge.slot_wait})
      family->with("text.encode->denoise.denoise").Observe(2e-5);
    for (auto* family : {&edge.slots, &edge.slots_in_use})
      family->with("text.encode->denoise.denoise").Set(2);
    edge.slots_discarded.with("text.encode->denoise.denoise", "cancelled").Increment();
    worker.up.with("denoise", "0").Set(1);
    worker.restarts.with("denoise", "signal").Increment();
    worker.resident_memory.with("denoise", "0").Set(1 << 20);
    worker.device_memory.with("cpu", "weights").Set(1 << 20);
    worker.ulysses_info.with("denoise", "shm").Set(1);
    for (auto* family : {&worker.model_load, &worker.warm_up, &worker.model_weights})
      family->with("denoise").Set(4);
    encoder.encode.with("mp4").Observe(1);
    encoder.failures.with("UNAVAILABLE").Increment();
    api.requests.with("Submit", "OK").Increment();
    api.duration.with("Submit").Observe(1e-3);
  }
};

std::set<std::string> exposedFamilies(const std::string& text) {
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, std::regex("# TYPE (\\S+) .*"))) names.insert(match[1]);
  }
  return names;
}

}  // namespace

TEST_CASE("metrics: the names that the design promises are exported", "[metrics]") {
  const AllMetrics all;
  const std::set<std::string> names = exposedFamilies(all.registry.expose());
  for (const char* promised :
       {"jobs_total", "jobs_rejected_total", "queue_depth", "queue_wait_seconds", "stage_seconds",
        "denoise_step_seconds", "edge_bytes_total", "handoff_seconds", "slot_wait_seconds", "slots_in_use",
        "slots_discarded_total", "cancel_seconds", "worker_restarts_total", "device_memory_bytes"}) {
    CAPTURE(promised);
    CHECK(names.count(std::string("latentd_") + promised) == 1);
  }
}

TEST_CASE("metrics: every name has the prefix and every label is of a closed set", "[metrics]") {
  const AllMetrics all;
  const std::string text = all.registry.expose();
  for (const std::string& name : exposedFamilies(text)) {
    CAPTURE(name);
    CHECK(name.rfind("latentd_", 0) == 0);
  }
  const std::set<std::string> allowed{"stage", "group",  "rank",   "edge",    "result",    "reason", "device",
                                      "kind",  "method", "format", "version", "transport", "le"};
  const std::regex label("[{,]([a-z_]+)=\"");
  for (std::sregex_iterator it(text.begin(), text.end(), label), end; it != end; ++it) {
    CAPTURE((*it)[1].str());
    CHECK(allowed.count((*it)[1]) == 1);
  }
}

TEST_CASE("metrics: what the start knows is zero before anything happens", "[metrics]") {
  Registry registry;
  JobMetrics job(registry);
  EdgeMetrics edge(registry);
  WorkerMetrics worker(registry);
  const EncoderMetrics encoder(registry);
  const ApiMetrics api(registry);
  job.expect({"text"});
  edge.expect({"a->b"});
  worker.expect("text", 2);
  const std::string text = registry.expose();
  for (const char* sample :
       {"jobs_total{result=\"cancelled\"}", "jobs_rejected_total{reason=\"not_ready\"}", "jobs_retried_total",
        "job_seconds_count{result=\"failed\"}", "stage_seconds_count{stage=\"text\"}",
        "stage_failures_total{reason=\"UNAVAILABLE\",stage=\"text\"}", "handoffs_total{edge=\"a->b\"}",
        "handoff_seconds_count{edge=\"a->b\"}", "slots_discarded_total{edge=\"a->b\",reason=\"failed\"}",
        "worker_restarts_total{group=\"text\",reason=\"heartbeat\"}", "worker_up{group=\"text\",rank=\"1\"}",
        "mesh_operations_total{group=\"text\",rank=\"1\"}", "mesh_bytes_total{group=\"text\",rank=\"0\"}",
        "encoder_failures_total{reason=\"DATA_LOSS\"}", "encode_seconds_count{format=\"gif\"}",
        "grpc_requests_total{method=\"Watch\",result=\"OK\"}", "grpc_request_seconds_count{method=\"Drain\"}"}) {
    CAPTURE(sample);
    CHECK(text.find(std::string("latentd_") + sample + " 0\n") != std::string::npos);
  }
}

TEST_CASE("metrics: the same label values are the same metric", "[metrics]") {
  Registry registry;
  EdgeMetrics edge(registry);
  edge.slots_discarded.with("a->b", "cancelled").Increment();
  edge.slots_discarded.with("a->b", "cancelled").Increment();
  edge.slots_discarded.with("a->b", "failed").Increment();
  CHECK(edge.slots_discarded.with("a->b", "cancelled").Value() == 2);
  CHECK(edge.slots_discarded.with("a->b", "failed").Value() == 1);
}

TEST_CASE("metrics: what changes by itself is read when somebody looks", "[metrics]") {
  Registry registry;
  EncoderMetrics encoder(registry);
  double bytes = 1;
  registry.beforeExpose([&] { encoder.spool_bytes.Set(bytes); });
  CHECK(registry.expose().find("latentd_spool_bytes 1\n") != std::string::npos);
  bytes = 2;
  CHECK(registry.expose().find("latentd_spool_bytes 2\n") != std::string::npos);
}

TEST_CASE("metrics: promtool finds nothing to say", "[metrics]") {
  if (std::system("command -v promtool >/dev/null") != 0) {
    FAIL("promtool is not installed: run tools/setup (package prometheus)");
  }
  const AllMetrics all;
  char path[] = "/tmp/latentd-metrics-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  std::ofstream(path) << all.registry.expose();
  close(fd);
  const int result = std::system((std::string("promtool check metrics < ") + path + " 2>&1").c_str());
  std::remove(path);
  CHECK(result == 0);
}

}  // namespace latentd::metrics
