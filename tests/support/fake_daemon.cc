// The public API over jobs that follow scripts (tests/support/scripted_jobs.h), for tests of clients. Prints the
// address it listens on and runs until it is killed.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "runtime/api/server.h"
#include "tests/support/fake_job_service.h"
#include "tests/support/scripted_jobs.h"

int main(int argc, char** argv) {
  using namespace latentd;
  testing::FakeJobService jobs({.queue_max = 200, .prompt_bytes_max = 1000});
  const testing::ScriptedJobs script(jobs, std::chrono::milliseconds(argc > 1 ? std::atoi(argv[1]) : 5));
  metrics::Registry registry;
  metrics::ApiMetrics metrics(registry);
  const auto server = api::Server::start(api::ServerOptions(), jobs, metrics);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", messageOf(server.status()).c_str());
    return 1;
  }
  std::printf("listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  for (;;)
    pause();
}
