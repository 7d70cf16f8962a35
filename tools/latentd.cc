// latentd: the daemon. Reads a topology, starts its workers, serves jobs. Flags, wiring and nothing else.
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <absl/synchronization/mutex.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/api/rpc_log.h"
#include "runtime/api/server.h"
#include "runtime/base/child_spawner.h"
#include "runtime/base/clock.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/log.h"
#include "runtime/base/signal_filter.h"
#include "runtime/base/standard_output.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/version.h"
#include "runtime/config/loader.h"
#include "runtime/config/schema.h"
#include "runtime/media/metered_outputs.h"
#include "runtime/media/output_factory.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/metrics/http_endpoint.h"
#include "runtime/metrics/registry.h"
#include "runtime/supervisor/ports_file.h"
#include "runtime/supervisor/preflight.h"
#include "runtime/supervisor/runtime_dir.h"
#include "runtime/supervisor/supervisor.h"
#include "tools/check_plan.h"
#include "tools/plan/command.h"

namespace latentd {
namespace {

namespace fs = std::filesystem;

// Also in --help.
enum class Exit : int { kOrderly = 0, kFailed = 1, kUsage = 2, kKilled = 3 };

constexpr const char* kFooter =
    R"(Ctrl-C or SIGTERM once: no new jobs; what runs may finish within half of deadlines.shutdown_grace, then is
cancelled; ends within deadlines.shutdown_grace. A second time: kills the workers.

Exit codes: 0 ended in order; 1 could not start or go on (the cause is printed); 2 bad command line or topology;
3 killed by a second signal.

HTTP, all GET: /metrics for Prometheus; /healthz 200 while the process answers; /readyz 200 while it takes jobs, else
503 and the reason; /config the plan as --check prints it, with the ports that are bound.

Environment: XDG_RUNTIME_DIR is where the private folder for sockets goes unless the topology says runtime_dir.)";

// How long the public port may take to end its calls once no job is left: watchers have had their last state.
constexpr std::chrono::milliseconds kServerGrace{500};

// Open files of the daemon itself: ports, loops, some outputs and clients; half of them are open when it is idle.
constexpr rlim_t kOpenFilesOwn = 64;
// Of each worker: lifeline, pidfd, output, control stream, and the same once more while it is replaced.
constexpr rlim_t kOpenFilesPerRank = 8;

struct Arguments {
  std::string config;
  bool check = false;
  bool json = false;
  bool print_schema = false;
  std::string log_level;
  bool log_json = false;
  std::string worker_binary;
  std::string encoder_binary;
  std::string listen;
  std::string http;
  std::string ports_file;
  std::optional<plan::Arguments> plan;  // of the subcommand; absent: it was not given
};

int fail(Exit code, const Status& status) {
  std::fprintf(stderr, "latentd: %s\n", messageOf(status).c_str());
  return static_cast<int>(code);
}

// Once the log has its format: who reads JSON lines gets nothing else.
int failLogged(Exit code, const Status& status, const config::LogSpec& log) {
  if (log.format != config::LogFormat::kJson) return fail(code, status);
  getLogger("latentd")->critical("{}", messageOf(status));
  return static_cast<int>(code);
}

// The exit code if the program ends here: --help, --version, or a bad command line.
std::optional<int> parse(int argc, char** argv, Arguments& arguments) {
  CLI::App app{
      "Serves staged video diffusion models from one machine: starts the worker processes that a topology file "
      "describes and turns prompts into videos. latentctl is its client.",
      "latentd"};
  app.set_version_flag("--version", "latentd " + std::string(kVersion));
  app.footer(kFooter);
  app.add_option("--config", arguments.config, "Topology file (YAML); --print-schema documents its keys");
  CLI::Option* check = app.add_flag("--check", arguments.check, "Print what the topology resolves to, and exit");
  app.add_flag("--json", arguments.json, "With --check: as JSON")->needs(check);
  app.add_flag("--print-schema", arguments.print_schema, "Document every key of the topology file, and exit");
  app.add_option("--listen", arguments.listen, "HOST:PORT of the gRPC API, over the topology's; port 0: any free one");
  app.add_option("--http", arguments.http,
                 "HOST:PORT of metrics and health, over the topology's; port 0: any free one");
  app.add_option("--ports-file", arguments.ports_file,
                 "Once ready, write lines grpc=HOST:PORT and http=HOST:PORT here; removed at the end");
  app.add_option("--log-level", arguments.log_level, "trace, debug, info, warn or error, over the topology's");
  app.add_flag("--log-json", arguments.log_json, "Log one JSON object a line");
  app.add_option("--worker-binary", arguments.worker_binary, "latent-worker to start; default: the one beside latentd");
  app.add_option("--encoder-binary", arguments.encoder_binary, "latent-encoder to start; default: beside latentd");
  plan::Arguments plan_arguments;
  const CLI::App* plan_command = plan::addCommand(app, plan_arguments);
  try {
    app.parse(argc, argv);
    if (plan_command->parsed()) {
      arguments.plan = std::move(plan_arguments);
    } else if (!arguments.print_schema && arguments.config.empty()) {
      throw CLI::RequiredError("--config");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(Exit::kUsage);
  }
  return std::nullopt;
}

config::Surroundings surroundings() {
  config::Surroundings found;
  const char* runtime_dir = getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr && fs::is_directory(runtime_dir)) found.runtime_dir = runtime_dir;
  found.cores = std::max(1U, std::thread::hardware_concurrency());
  return found;
}

Status override(const std::string& flag, const std::string& text, const char* key, config::Endpoint& endpoint) {
  if (text.empty()) return absl::OkStatus();
  StatusOr<config::Value> value = config::parseScalar(config::KeyTable().find(key)->rule, text);
  if (!value.ok()) return annotate(value.status(), flag);
  endpoint = std::get<config::Endpoint>(*value);
  return absl::OkStatus();
}

StatusOr<config::Topology> loadTopology(const Arguments& arguments) {
  LATENTD_ASSIGN_OR_RETURN(config::Topology topology, config::loadTopology(arguments.config, surroundings()));
  LATENTD_RETURN_IF_ERROR(override("--listen", arguments.listen, "listen", topology.listen));
  LATENTD_RETURN_IF_ERROR(override("--http", arguments.http, "http", topology.http));
  if (!arguments.log_level.empty()) topology.log.level = arguments.log_level;
  if (arguments.log_json) topology.log.format = config::LogFormat::kJson;
  return topology;
}

// A program of ours: the one that was named, or the one beside this executable.
StatusOr<std::string> findBinary(const std::string& flag, const std::string& given, const std::string& name) {
  std::error_code error;
  const std::string path =
      given.empty() ? (fs::read_symlink("/proc/self/exe", error).parent_path() / name).string() : given;
  if (access(path.c_str(), X_OK) == 0) return path;
  return absl::NotFoundError(path + " is not an executable file: build or install " + name + ", or name it with " +
                             flag);
}

// SIGINT and SIGTERM as events of the loop. Blocked before any thread starts, so that no thread takes them.
class SignalWatch {
 public:
  static void block() {
    const sigset_t set = signals();
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    // Peers that close early are errors of a write, not the end of the daemon.
    signal(SIGPIPE, SIG_IGN);
    // So are files that may not grow further.
    signal(SIGXFSZ, SIG_IGN);
  }

  // Readable once one of them has come, which it stays until it is read.
  static UniqueFd open() {
    const sigset_t set = signals();
    return UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  SignalWatch(EventLoop& loop, std::function<void()> on_signal) : loop_(loop), fd_(open()) {
    auto watched = loop.watch(fd_.get(), EPOLLIN, [this, on_signal = std::move(on_signal)](uint32_t) {
      signalfd_siginfo info{};
      while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
        if (filter_.counts(static_cast<int>(info.ssi_signo), std::chrono::steady_clock::now())) on_signal();
      }
    });
    if (watched.ok()) watch_ = *watched;
  }
  ~SignalWatch() { loop_.unwatch(watch_); }
  bool valid() const { return watch_.id != 0; }

 private:
  static sigset_t signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
  }

  EventLoop& loop_;
  UniqueFd fd_;
  SignalFilter filter_;
  EventLoop::Watch watch_;
};

// As many open files as the host allows; too few are refused now rather than met in the middle of a job.
Status raiseOpenFilesLimit(const config::Topology& topology) {
  rlim_t needed = kOpenFilesOwn;
  for (const config::GroupSpec& group : topology.groups)
    needed += kOpenFilesPerRank * group.ranks();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return errnoStatus(errno, "read the open files limit");
  limit.rlim_cur = limit.rlim_max;
  if (limit.rlim_max < needed) {
    return absl::ResourceExhaustedError("open files limit: " + std::to_string(limit.rlim_max) + "; " +
                                        std::to_string(needed) + " or more are needed: raise it with ulimit -n");
  }
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? absl::OkStatus() : errnoStatus(errno, "raise the open files limit");
}

std::vector<std::string> environmentOf() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry)
    entries.emplace_back(*entry);
  return entries;
}

struct Binaries {
  std::string worker;
  std::string encoder;
};

StatusOr<std::unique_ptr<media::SpoolOutputFactory>> makeOutputs(const config::Topology& topology,
                                                                 const supervisor::RuntimeDir& runtime_dir,
                                                                 const std::string& encoder, ChildSpawner& spawner,
                                                                 const Clock& clock) {
  media::SpoolOutputFactory::Options options;
  options.spool.dir = topology.spool.dir.empty() ? runtime_dir.file("spool") : topology.spool.dir;
  options.spool.bytes_max = topology.spool.bytes_max;
  options.spool.retention = topology.spool.retention;
  options.encoder = encoder;
  options.encode_deadline = topology.deadlines.encode;
  auto outputs = media::SpoolOutputFactory::create(std::move(options), spawner, clock);
  if (outputs.ok() || topology.spool.dir.empty()) return outputs;
  return topology.locations.refuse("spool.dir", messageOf(outputs.status()));
}

// Everything that serves, from the private folder to the ports; returns when it has ended.
Status serve(const config::Topology& topology, const config::Findings& findings, const Arguments& arguments,
             const Binaries& binaries, ChildSpawner& spawner) {
  const SteadyClock clock;
  const Logger log = getLogger("latentd");
  LATENTD_ASSIGN_OR_RETURN(supervisor::PortsFile ports_file, supervisor::PortsFile::create(arguments.ports_file));
  metrics::Registry registry;
  metrics::registerBuildInfo(registry, kVersion);
  metrics::ApiMetrics api_metrics(registry);
  metrics::EncoderMetrics encoder_metrics(registry);
  LATENTD_ASSIGN_OR_RETURN(const supervisor::RuntimeDir runtime_dir,
                           supervisor::RuntimeDir::create(topology.runtime_dir));
  LATENTD_ASSIGN_OR_RETURN(const auto outputs, makeOutputs(topology, runtime_dir, binaries.encoder, spawner, clock));
  encoder_metrics.spool_bytes_max.Set(static_cast<double>(topology.spool.bytes_max));
  registry.beforeExpose([&] { encoder_metrics.spool_bytes.Set(static_cast<double>(outputs->spoolBytes())); });
  media::MeteredOutputFactory metered_outputs(*outputs, encoder_metrics, clock);
  EventLoop loop(clock);
  std::string grpc_address;
  std::string http_address;
  std::mt19937_64 random{std::random_device()()};
  const auto on_ready = [&] {
    log->info("ready: gRPC on {}, metrics and health on http://{}", grpc_address, http_address);
    const Status written = ports_file.publish(grpc_address, http_address);
    if (!written.ok()) log->error("{}", messageOf(written));
  };
  supervisor::Supervisor supervisor({.topology = topology,
                                     .clock = clock,
                                     .loop = loop,
                                     .spawner = spawner,
                                     .outputs = metered_outputs,
                                     .registry = registry,
                                     .runtime_dir = runtime_dir,
                                     .worker_binary = binaries.worker,
                                     .random = [&random] { return random(); },
                                     .on_ready = on_ready,
                                     .place_of = placeOf});
  const SignalWatch signals(loop, [&supervisor] { supervisor.interrupt(); });
  if (!signals.valid())
    return absl::ResourceExhaustedError("no descriptors left for signals: raise the open files limit");

  // Both ports before any worker: a port that is taken is known at once, not after the model is loaded.
  LATENTD_ASSIGN_OR_RETURN(const auto server, api::Server::start({.host = topology.listen.host,
                                                                  .port = topology.listen.port,
                                                                  .drain_deadline = topology.deadlines.job},
                                                                 supervisor, api_metrics));
  const auto config_text = [&](uint16_t http_port) {
    config::Topology bound = topology;
    bound.listen.port = server->port();
    bound.http.port = http_port;
    return checkText(bound, findings);
  };
  LATENTD_ASSIGN_OR_RETURN(const auto http,
                           metrics::HttpEndpoint::start({.host = topology.http.host,
                                                         .port = topology.http.port,
                                                         .live = [&supervisor] { return supervisor.live(); },
                                                         .ready = [&supervisor] { return supervisor.ready(); },
                                                         .config_text = config_text},
                                                        registry));
  grpc_address = server->address();
  http_address = config::toString(config::Endpoint{topology.http.host, http->port()});
  for (const std::string& note : findings.notes)
    log->warn("{}", note);
  log->info("latentd {}: gRPC on {}, metrics and health on http://{}; loading", kVersion, grpc_address, http_address);
  LATENTD_RETURN_IF_ERROR(supervisor.start());
  loop.run();
  server->stop(kServerGrace);
  return supervisor.outcome();
}

// What was asked for is told; the exit code.
int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  const Status written = flushOutput();
  return written.ok() ? 0 : fail(Exit::kFailed, written);
}

// Of a preflight: the file's fault, or that of what should check it.
Exit exitOf(const Status& status) { return absl::IsInvalidArgument(status) ? Exit::kUsage : Exit::kFailed; }

// Only its configuration: nothing is started but the worker program's own check.
int check(config::Topology topology, bool json, const std::string& worker) {
  ChildSpawner spawner(environmentOf());
  const StatusOr<config::Findings> findings = supervisor::preflight(topology, spawner, worker, -1);
  if (!findings.ok()) return fail(exitOf(findings.status()), findings.status());
  config::settle(*findings, topology);
  return print((json ? checkJson(topology, *findings) : checkText(topology, *findings)) + "\n");
}

// Predictions only: nothing is started.
int printPlan(const plan::Arguments& arguments) {
  const StatusOr<std::string> text = plan::run(arguments);
  if (!text.ok()) return fail(exitOf(text.status()), text.status());
  return print(*text);
}

int run(int argc, char** argv) {
  Arguments arguments;
  if (const std::optional<int> code = parse(argc, argv, arguments)) return *code;
  if (arguments.plan) return printPlan(*arguments.plan);
  if (arguments.print_schema) return print(config::printSchema(config::KeyTable()));
  StatusOr<config::Topology> topology = loadTopology(arguments);
  if (!topology.ok()) return fail(Exit::kUsage, topology.status());
  const StatusOr<std::string> worker = findBinary("--worker-binary", arguments.worker_binary, "latent-worker");
  if (!worker.ok()) return fail(Exit::kUsage, worker.status());
  if (arguments.check) return check(*topology, arguments.json, *worker);
  const StatusOr<std::string> encoder = findBinary("--encoder-binary", arguments.encoder_binary, "latent-encoder");
  if (!encoder.ok()) return fail(Exit::kUsage, encoder.status());
  const Status logging = initLogging(
      {.level = topology->log.level, .json = topology->log.format == config::LogFormat::kJson, .process = "latentd"});
  if (!logging.ok()) return fail(Exit::kUsage, annotate(logging, "--log-level"));

  // Distributions build abseil with it, and then gRPC enters its every lock into one graph.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  api::routeRpcLogs();
  SignalWatch::block();
  if (const Status raised = raiseOpenFilesLimit(*topology); !raised.ok()) {
    return failLogged(Exit::kFailed, raised, topology->log);
  }
  ChildSpawner spawner(environmentOf());
  const UniqueFd interrupt = SignalWatch::open();
  const StatusOr<config::Findings> findings = supervisor::preflight(*topology, spawner, *worker, interrupt.get());
  if (absl::IsCancelled(findings.status())) {
    getLogger("latentd")->info("ended: {}", messageOf(findings.status()));
    return static_cast<int>(Exit::kOrderly);
  }
  if (!findings.ok()) return failLogged(exitOf(findings.status()), findings.status(), topology->log);
  if (const Status present = supervisor::checkDevices(*topology, *findings); !present.ok()) {
    return failLogged(Exit::kUsage, present, topology->log);
  }
  config::settle(*findings, *topology);
  const Status outcome = serve(*topology, *findings, arguments, {*worker, *encoder}, spawner);
  if (outcome.ok()) {
    getLogger("latentd")->info("ended");
    return static_cast<int>(Exit::kOrderly);
  }
  return failLogged(outcome.code() == absl::StatusCode::kAborted ? Exit::kKilled : Exit::kFailed, outcome,
                    topology->log);
}

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) { return latentd::run(argc, argv); }
