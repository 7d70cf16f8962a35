// How many jobs a second pass through the whole control plane, and whether memory stays flat.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "tests/runtime/supervisor/harness.h"
#include "tests/support/catch.h"
#include "tests/support/self_path.h"

namespace latentd::supervisor {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

uint64_t residentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  uint64_t resident = 0;
  file >> pages >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

config::Topology busyTopology() {
  config::Topology topology = chainTopology({1, 1, 1});
  topology.queue.length_max = 64;
  topology.limits.jobs_kept = 200;
  topology.limits.in_flight_per_group = 4;
  for (config::EdgeSpec& edge : topology.edges)
    edge.slots = 4;
  topology.log.level = "warn";
  return topology;
}

struct Measured {
  double jobs_per_second = 0;
  double first_command_p50_ms = 0;  // submission to the first stage's start, on an idle pipeline
  int64_t growth_bytes = 0;         // over the last 90 %
  uint64_t succeeded = 0;
};

Measured measure(uint64_t jobs) {
  spdlog::set_level(spdlog::level::warn);
  Harness harness(busyTopology(), testing::siblingBinary("fake_worker"));
  REQUIRE(harness.waitReady());
  Measured measured;
  std::vector<double> waits;
  for (int count = 0; count < 50; ++count) {
    const auto submitted = steady_clock::now();
    const JobId id = harness.submit();
    while (!harness.service().get(id)->stages(0).has_start_time()) {
    }
    waits.push_back(duration<double, std::milli>(steady_clock::now() - submitted).count());
    harness.waitJob(id);
  }
  std::nth_element(waits.begin(), waits.begin() + 25, waits.end());
  measured.first_command_p50_ms = waits[25];

  uint64_t resident_at_tenth = 0;
  const auto begin = steady_clock::now();
  JobId last;
  for (uint64_t count = 0; count < jobs; ++count) {
    v1::SubmitRequest request;
    request.mutable_parameters()->set_prompt("a red ball");
    StatusOr<v1::Job> job = harness.service().submit(request);
    // A full queue is what keeps the pipeline busy: ask again.
    while (job.status().code() == absl::StatusCode::kResourceExhausted) {
      poll(nullptr, 0, 1);
      job = harness.service().submit(request);
    }
    REQUIRE(job.ok());
    last = job->id();
    if (count == jobs / 10) resident_at_tenth = residentBytes();
  }
  harness.waitJob(last);
  measured.jobs_per_second = static_cast<double>(jobs) / duration<double>(steady_clock::now() - begin).count();
  measured.growth_bytes = static_cast<int64_t>(residentBytes()) - static_cast<int64_t>(resident_at_tenth);
  const std::string metrics = harness.registry().expose();
  const std::string name = "latentd_jobs_total{result=\"succeeded\"} ";
  measured.succeeded = std::stoull(metrics.substr(metrics.find(name) + name.size()));
  std::printf("%llu jobs: %.0f jobs/s, submission to first stage p50 %.3f ms, growth over the last 90 %% %.1f KiB\n",
              static_cast<unsigned long long>(jobs), measured.jobs_per_second, measured.first_command_p50_ms,
              static_cast<double>(measured.growth_bytes) / 1024);
  return measured;
}

TEST_CASE("throughput: thousands of jobs in a row all succeed, and memory stays flat", "[supervisor]") {
  const Measured measured = measure(3000);
  CHECK(measured.succeeded == 3050);
  CHECK(measured.growth_bytes < (1 << 20));
}

TEST_CASE("throughput: a minute of jobs at a thousand a second", "[.][supervisor][bench]") {
  const Measured measured = measure(60000);
  CHECK(measured.succeeded == 60050);
  CHECK(measured.jobs_per_second > 1000);
  CHECK(measured.growth_bytes < (1 << 20));
}

}  // namespace
}  // namespace latentd::supervisor
