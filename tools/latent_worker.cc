// latent-worker: one rank of one group. Started by latentd; of no use alone.
#include <signal.h>
#include <unistd.h>

#include <absl/synchronization/mutex.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/standard_output.h"
#include "runtime/base/version.h"
#include "runtime/worker/memory_limit.h"
#include "runtime/worker/preflight.h"
#include "runtime/worker/worker.h"
#include "stages/builtin.h"

namespace latentd {
namespace {

// The codes of worker::WorkerExit.
constexpr const char* kFooter =
    "SIGTERM and SIGINT are told to latentd: it replaces the group, or drains if it was sent one too.\n\n"
    "Exit codes: 0 told to end; 1 no supervisor, or the stage did not start; 2 bad command line; 3 latentd is gone;\n"
    "4 did not end within its grace; 5 latentd took no events for too long.";

struct Arguments {
  worker::WorkerOptions options;
  LogOptions log;
  bool describe = false;
  std::vector<int> preflight;  // descriptors of request and result
};

// The exit code if the program ends here: --help, --version, or a bad command line.
std::optional<int> parse(int argc, char** argv, Arguments& arguments) {
  CLI::App app{"One rank of a latentd group. latentd starts it; it is of no use alone.", "latent-worker"};
  int lifeline_fd = -1;
  app.set_version_flag("--version", "latent-worker " + std::string(kVersion));
  app.add_flag("--describe", arguments.describe,
               "Print the stages it can run, with their methods and options, as JSON, and exit");
  app.add_option("--preflight", arguments.preflight,
                 "Check the groups that the first descriptor names, answer on the second, and exit")
      ->expected(2)
      ->type_name("FD FD");
  app.add_option("--control", arguments.options.control_target, "The supervisor's socket: unix:PATH");
  app.add_option("--group", arguments.options.group, "Name of the group");
  app.add_option("--rank", arguments.options.rank.value, "Position in the group, from 0");
  app.add_option("--epoch", arguments.options.epoch.value, "Incarnation of the group, from 1");
  app.add_option("--lifeline-fd", lifeline_fd, "Inherited socket; its end means that latentd is gone");
  app.add_option("--log-level", arguments.log.level, "trace, debug, info, warn or error");
  app.add_flag("--log-json", arguments.log.json, "One JSON object a line");
  app.footer(kFooter);
  try {
    app.parse(argc, argv);
    if (!arguments.describe && arguments.preflight.empty()) {
      for (const char* name : {"--control", "--group", "--rank", "--epoch", "--lifeline-fd"}) {
        if (app.count(name) == 0) throw CLI::RequiredError(name);
      }
    }
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(worker::WorkerExit::kUsage);
  }
  arguments.options.lifeline.reset(lifeline_fd);
  arguments.log.process = arguments.options.group + "/" + std::to_string(arguments.options.rank.value);
  return std::nullopt;
}

// Before any thread starts, so that all of them inherit it: the worker reads these from a descriptor.
void blockSignals() {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigaddset(&blocked, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  // A pool above the limit of file sizes is an error of its job, not the end of the process.
  ::signal(SIGXFSZ, SIG_IGN);
  // Gloo writes to connections that a peer closed: an error of the group, which says whose.
  ::signal(SIGPIPE, SIG_IGN);
}

// Everything of ours is down. The destructors of torch's and CUDA's globals take 0.4 s and can crash where no device
// is; the kernel takes their memory back.
[[noreturn]] void leave(worker::WorkerExit exit) {
  std::fflush(nullptr);
  ::_exit(static_cast<int>(exit));
}

[[noreturn]] void finish(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "latent-worker: %s\n", messageOf(status).c_str());
  leave(status.ok() ? worker::WorkerExit::kDone : worker::WorkerExit::kStartFailed);
}

Status describe(const stages::StageRegistry& registry) {
  LATENTD_ASSIGN_OR_RETURN(const std::string text, worker::describeStages(registry));
  std::fputs(text.c_str(), stdout);
  return flushOutput();
}

int run(int argc, char** argv) {
  Arguments arguments;
  if (const std::optional<int> code = parse(argc, argv, arguments)) return *code;
  const std::unique_ptr<worker::MemoryLimit> memory_limit = worker::MemoryLimit::apply();
  stages::StageRegistry registry;
  stages::registerBuiltinStages(registry);
  if (arguments.describe) finish(describe(registry));
  blockSignals();
  if (const Status status = initLogging(arguments.log); !status.ok()) {
    std::fprintf(stderr, "latent-worker: %s\n", messageOf(status).c_str());
    return static_cast<int>(worker::WorkerExit::kUsage);
  }
  if (!arguments.preflight.empty()) {
    finish(worker::answerPreflight(registry, arguments.preflight[0], arguments.preflight[1]));
  }
  // As latentd does.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const worker::WorkerExit exit = worker::Worker(std::move(arguments.options), registry).run();
  leave(exit);
}

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) { return latentd::run(argc, argv); }
