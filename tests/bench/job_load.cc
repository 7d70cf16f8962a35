// Submits small jobs as fast as a daemon takes them, from a few threads. Prints one JSON object: how many were taken,
// how often the queue was full, and how long a Submit took. Whether the jobs then succeed is for the daemon's metrics.
//
//   job_load --endpoint HOST:PORT [--jobs 60000] [--threads 4] [--size 16]

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "proto/api.grpc.pb.h"

namespace latentd::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A queue of 256 jobs loses some 30 in this time, so that it never runs dry while we wait.
constexpr std::chrono::milliseconds kFullQueueWait{25};
constexpr std::chrono::seconds kCallDeadline{10};
// No job of this size stays in a queue for so long; a daemon that takes none is stuck.
constexpr std::chrono::seconds kPatience{30};

struct Arguments {
  std::string endpoint;
  uint64_t jobs = 60000;
  int threads = 4;
  uint32_t size = 16;  // pixels a side, one frame
};

struct Tally {
  std::vector<float> submit_us;  // of the jobs that were taken
  uint64_t refused = 0;
  std::string error;
};

v1::SubmitRequest requestOf(const Arguments& arguments) {
  v1::SubmitRequest request;
  v1::JobParameters& parameters = *request.mutable_parameters();
  parameters.set_prompt("nothing");
  parameters.set_frames(1);
  parameters.set_width(arguments.size);
  parameters.set_height(arguments.size);
  parameters.set_format(v1::OUTPUT_FORMAT_RGB24);
  return request;
}

// False once the daemon refuses for good, with the reason in the tally.
bool submitOne(v1::Jobs::Stub& stub, const v1::SubmitRequest& request, Tally& tally) {
  const auto start = SteadyClock::now();
  for (auto attempt = start; attempt < start + kPatience; attempt = SteadyClock::now()) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    v1::Job job;
    const grpc::Status status = stub.Submit(&context, request, &job);
    if (status.ok()) {
      tally.submit_us.push_back(std::chrono::duration<float, std::micro>(SteadyClock::now() - attempt).count());
      return true;
    }
    if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) {
      tally.error = status.error_message();
      return false;
    }
    ++tally.refused;
    std::this_thread::sleep_for(kFullQueueWait);
  }
  tally.error = "the queue stayed full";
  return false;
}

void submitShare(const Arguments& arguments, std::atomic<int64_t>& left, Tally& tally) {
  const auto stub = v1::Jobs::NewStub(grpc::CreateChannel(arguments.endpoint, grpc::InsecureChannelCredentials()));
  const v1::SubmitRequest request = requestOf(arguments);
  while (left.fetch_sub(1) > 0) {
    if (!submitOne(*stub, request, tally)) return;
  }
}

int run(const Arguments& arguments) {
  std::atomic<int64_t> left{static_cast<int64_t>(arguments.jobs)};
  std::vector<Tally> tallies(static_cast<size_t>(arguments.threads));
  const auto start = SteadyClock::now();
  std::vector<std::thread> threads;
  for (Tally& tally : tallies)
    threads.emplace_back([&] { submitShare(arguments, left, tally); });
  for (std::thread& thread : threads)
    thread.join();
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();

  Tally all;
  for (const Tally& tally : tallies) {
    all.submit_us.insert(all.submit_us.end(), tally.submit_us.begin(), tally.submit_us.end());
    all.refused += tally.refused;
    if (!tally.error.empty()) all.error = tally.error;
  }
  std::sort(all.submit_us.begin(), all.submit_us.end());
  const auto at = [&](size_t percent) {
    return all.submit_us.empty() ? 0.0f : all.submit_us[(all.submit_us.size() - 1) * percent / 100];
  };
  const nlohmann::json report{{"submitted", all.submit_us.size()},
                              {"refused", all.refused},
                              {"seconds", seconds},
                              {"submit_p50_us", at(50)},
                              {"submit_p95_us", at(95)}};
  std::printf("%s\n", report.dump().c_str());
  if (!all.error.empty()) std::fprintf(stderr, "job_load: %s\n", all.error.c_str());
  return all.error.empty() ? 0 : 1;
}

}  // namespace
}  // namespace latentd::bench

int main(int argc, char** argv) {
  latentd::bench::Arguments arguments;
  CLI::App app{"Submits small jobs as fast as a daemon takes them."};
  app.add_option("--endpoint", arguments.endpoint, "HOST:PORT of the daemon")->required();
  app.add_option("--jobs", arguments.jobs)->check(CLI::PositiveNumber);
  app.add_option("--threads", arguments.threads, "each with a connection of its own")->check(CLI::PositiveNumber);
  app.add_option("--size", arguments.size, "pixels a side of the one frame")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return latentd::bench::run(arguments);
}
