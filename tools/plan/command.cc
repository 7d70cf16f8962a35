#include "tools/plan/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <variant>

#include "runtime/base/unique_fd.h"
#include "runtime/config/schema.h"
#include "runtime/config/value.h"
#include "tools/plan/report.h"
#include "tools/plan/topology_text.h"

namespace latentd::plan {
namespace {

constexpr size_t kShown = 10;
constexpr const char* kFooter =
    R"(Reads the model's config.json files; its weights need not be there. Looks at every way to spread the denoiser
over GPUs, N or fewer, by cfg, ring, ulysses, pp, tp and, for throughput, dp, and the decoder by height, and predicts
memory, bytes sent, step and job. What this version does not serve is listed, and not proposed.

  latentd plan --model DIR --gpus 8
  latentd plan --model DIR --gpus 8 --goal throughput --yaml eight.yaml && latentd --config eight.yaml --check)";

// The value of a flag, by a rule.
template <class T>
StatusOr<T> valueOf(const char* flag, const std::string& text, const config::Rule& rule) {
  StatusOr<config::Value> value = config::parseScalar(rule, text);
  if (!value.ok()) return annotate(value.status(), flag);
  return std::get<T>(*std::move(value));
}

StatusOr<uint32_t> countOf(const char* flag, const std::string& text, const config::Rule& rule) {
  LATENTD_ASSIGN_OR_RETURN(const uint64_t count, valueOf<uint64_t>(flag, text, rule));
  return static_cast<uint32_t>(count);
}

config::Rule upTo(double max) { return {config::Type::kCount, {1, max}, {}}; }

// What the topology file would take, as that is what is made of it.
StatusOr<Job> jobOf(const Arguments& arguments) {
  const config::KeyTable keys;
  const auto rule = [&](const char* key) -> const config::Rule& { return keys.find(key)->rule; };
  Job job;
  LATENTD_ASSIGN_OR_RETURN(const auto size,
                           valueOf<config::FrameSize>("--size", arguments.size, rule("defaults.size")));
  job.width = size.width;
  job.height = size.height;
  LATENTD_ASSIGN_OR_RETURN(job.frames, countOf("--frames", arguments.frames, rule("defaults.frames")));
  LATENTD_ASSIGN_OR_RETURN(job.steps, countOf("--steps", arguments.steps, rule("defaults.steps")));
  LATENTD_ASSIGN_OR_RETURN(job.guidance, valueOf<double>("--guidance", arguments.guidance, rule("defaults.guidance")));
  LATENTD_ASSIGN_OR_RETURN(const auto dtype, valueOf<std::string>("--dtype", arguments.dtype, rule("groups[].dtype")));
  job.dtype = *parseDType(dtype);
  return job;
}

StatusOr<Hardware> hardwareOf(const Arguments& arguments) {
  const auto link = arguments.link.empty() ? std::nullopt : std::optional(arguments.link);
  LATENTD_ASSIGN_OR_RETURN(Hardware hardware, findHardware(arguments.gpu, link));
  LATENTD_ASSIGN_OR_RETURN(hardware.gpus_per_host, countOf("--gpus-per-host", arguments.gpus_per_host, upTo(kGpusMax)));
  if (!arguments.memory.empty()) {
    constexpr double kGiB = 1 << 30;
    LATENTD_ASSIGN_OR_RETURN(hardware.memory_bytes, valueOf<uint64_t>("--memory", arguments.memory,
                                                                      {config::Type::kBytes, {kGiB, 1024 * kGiB}, {}}));
  }
  return hardware;
}

Status writeNew(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.valid()) {
    if (errno == EEXIST) {
      return absl::AlreadyExistsError("--yaml: '" + path + "' exists; remove it or name another file, or - to print");
    }
    return errnoStatus(errno, "--yaml: create '" + path + "'");
  }
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errnoStatus(errno, "--yaml: write '" + path + "'");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

CLI::App* addCommand(CLI::App& app, Arguments& arguments) {
  CLI::App* plan = app.add_subcommand("plan", "Predict what GPUs make of a model, and propose a topology");
  plan->footer(kFooter);
  plan->add_option("--model", arguments.model, "Diffusers directory; its config.json files are enough")->required();
  plan->add_option("--gpus", arguments.gpus, "How many GPUs there are, 1 to 64")->required();
  plan->add_option("--gpu", arguments.gpu, "Which: " + gpuNames())->capture_default_str();
  plan->add_option("--link", arguments.link, "nvlink or pcie; default: the GPU's fastest");
  plan->add_option("--memory", arguments.memory, "Memory of each GPU, such as 40GiB; default: the GPU's");
  plan->add_option("--gpus-per-host", arguments.gpus_per_host, "More GPUs than these are on several hosts")
      ->capture_default_str();
  plan->add_option("--size", arguments.size, "Width and height of the videos")->capture_default_str();
  plan->add_option("--frames", arguments.frames, "Frames of the videos")->capture_default_str();
  plan->add_option("--steps", arguments.steps, "Denoising steps")->capture_default_str();
  plan->add_option("--guidance", arguments.guidance, "Guidance scale; 1 or less: one pass a step")
      ->capture_default_str();
  plan->add_option("--dtype", arguments.dtype, "float32, bfloat16 or float16")->capture_default_str();
  plan->add_option("--goal", arguments.goal, "latency: the soonest video; throughput: the most videos an hour")
      ->capture_default_str();
  plan->add_flag("--json", arguments.json, "Print everything as JSON: all candidates, all rejected splits");
  plan->add_option("--yaml", arguments.yaml, "Write the proposed topology to this new file; -: print it instead");
  return plan;
}

StatusOr<Request> makeRequest(const Arguments& arguments) {
  Request request;
  LATENTD_ASSIGN_OR_RETURN(request.gpus, countOf("--gpus", arguments.gpus, upTo(kGpusMax)));
  LATENTD_ASSIGN_OR_RETURN(request.hardware, hardwareOf(arguments));
  LATENTD_ASSIGN_OR_RETURN(request.job, jobOf(arguments));
  LATENTD_ASSIGN_OR_RETURN(
      const auto goal,
      valueOf<std::string>("--goal", arguments.goal, {config::Type::kChoice, {}, {"latency", "throughput"}}));
  request.goal = goal == "latency" ? Goal::kLatency : Goal::kThroughput;
  LATENTD_ASSIGN_OR_RETURN(request.model, Model::load(arguments.model));
  LATENTD_RETURN_IF_ERROR(checkJob(request.model, request.job));
  return request;
}

StatusOr<std::string> run(const Arguments& arguments) {
  LATENTD_ASSIGN_OR_RETURN(const Request request, makeRequest(arguments));
  LATENTD_ASSIGN_OR_RETURN(const Plan plan, search(request));
  const std::string report = arguments.json ? reportJson(request, plan) + "\n" : reportText(request, plan, kShown);
  if (arguments.yaml.empty()) return report;
  const Candidate* proposal = plan.proposal();
  if (proposal == nullptr) {
    return absl::FailedPreconditionError(
        "--yaml: this version serves none of what fits (" + plan.ranked.front().unserved + "); give --gpus " +
        std::to_string(request.hardware.gpus_per_host) + " or fewer, or more --memory");
  }
  const std::string yaml = topologyYaml(request, *proposal);
  if (arguments.yaml == "-") return yaml;
  LATENTD_RETURN_IF_ERROR(writeNew(arguments.yaml, yaml));
  return report;
}

}  // namespace latentd::plan
