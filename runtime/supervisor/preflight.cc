#include "runtime/supervisor/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/worker.pb.h"
#include "runtime/base/status_field.h"
#include "runtime/supervisor/group_contract.h"
#include "runtime/supervisor/job_validation.h"
#include "runtime/supervisor/preflight_process.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

// Where the file says the field of a group; for what it leaves to a default, the group.
std::string pathOf(const config::Topology& topology, size_t group, const std::string& field) {
  const std::string section = config::indexed("groups", group);
  const std::string own = config::joined(section, field);
  if (topology.locations.has(own)) return own;
  if (field == "model" && topology.locations.has("model")) return "model";
  if (field != "method") return own;
  for (size_t edge = 0; edge < topology.edges.size(); ++edge) {
    if (topology.edges[edge].from == group) return config::indexed("edges", edge) + ".from";
    if (topology.edges[edge].to == group) return config::indexed("edges", edge) + ".to";
  }
  return own;
}

// Collects what is wrong, so that a file is put right in one go.
class Problems {
 public:
  explicit Problems(const config::Topology& topology) : topology_(topology) {}

  void add(size_t group, const std::string& field, std::string_view message) {
    const config::GroupSpec& spec = topology_.groups[group];
    addAt(pathOf(topology_, group, field), fmt::format("{} ({}): {}", spec.name, spec.stage, message));
  }
  void addAt(const std::string& path, std::string_view message) {
    text_ += (text_.empty() ? "" : "\n") + messageOf(topology_.locations.refuse(path, message));
  }
  Status status() const { return text_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(text_); }

 private:
  const config::Topology& topology_;
  std::string text_;
};

Status checkGroups(const config::Topology& topology, const wire::PreflightResult& result) {
  Problems problems(topology);
  std::vector<const Methods*> methods;
  for (uint32_t group = 0; group < topology.groups.size(); ++group) {
    const wire::GroupFindings& found = result.groups(static_cast<int>(group));
    methods.push_back(&found.ready().methods());
    if (found.status().code() != 0) {
      problems.add(group, found.field(), found.status().message());
    } else if (const Status fits = checkMethod(topology, GroupIndex(group), *methods.back()); !fits.ok()) {
      problems.add(group, fieldOf(fits), messageOf(fits));
    }
  }
  LATENTD_RETURN_IF_ERROR(problems.status());
  if (const auto missing = findMissingInput(topology, methods)) {
    problems.addAt(pathOf(topology, missing->group.value, "method"), messageOf(missing->status));
  }
  return problems.status();
}

// The key of `defaults` that gives a field of a job.
std::string_view defaultsKeyOf(std::string_view field) {
  if (field == "width" || field == "height") return "size";
  return field == "guidance_scale" ? "guidance" : field;
}

Status checkDefaults(const config::Topology& topology, const JobLimits& limits, config::Findings& findings) {
  const std::vector<std::string> missing = missingParameters(limits.defaults);
  if (!missing.empty()) {
    findings.notes.push_back(
        fmt::format("jobs must say {}: neither defaults nor the model do", fmt::join(missing, ", ")));
  }
  const Status refused = checkDefaults(limits);
  if (refused.ok()) return refused;
  Problems problems(topology);
  problems.addAt(fmt::format("defaults.{}", defaultsKeyOf(fieldOf(refused))), messageOf(refused));
  return problems.status();
}

void fillLimits(const config::Topology& topology, const JobLimits& merged, config::Findings& findings) {
  findings.frame_step = merged.frame_step;
  findings.size_multiple = merged.size_multiple;
  findings.limits = topology.limits;
  findings.limits.frames_max = merged.frames_max;
  findings.limits.pixels_max = merged.pixels_max;
  findings.limits.steps_max = merged.steps_max;
  findings.limits.prompt_bytes_max = merged.prompt_bytes_max;
  const v1::JobParameters& from = merged.defaults;
  config::JobDefaults& to = findings.defaults;
  if (from.has_frames()) to.frames = from.frames();
  if (from.has_width()) to.width = from.width();
  if (from.has_height()) to.height = from.height();
  if (from.has_steps()) to.steps = from.steps();
  if (from.has_guidance_scale()) to.guidance = from.guidance_scale();
  if (from.has_fps()) to.fps = from.fps();
  if (from.has_flow_shift()) to.flow_shift = from.flow_shift();
  if (from.has_negative_prompt()) to.negative_prompt = from.negative_prompt();
}

}  // namespace

StatusOr<config::Findings> preflight(const config::Topology& topology, ChildSpawner& spawner,
                                     const std::string& worker_binary) {
  wire::PreflightRequest request;
  for (uint32_t group = 0; group < topology.groups.size(); ++group)
    *request.add_groups() = loadOf(topology, GroupIndex(group), Rank(0));
  LATENTD_ASSIGN_OR_RETURN(const wire::PreflightResult result,
                           runPreflight(spawner, worker_binary, request, topology.deadlines.load));
  LATENTD_RETURN_IF_ERROR(checkGroups(topology, result));

  config::Findings findings;
  findings.process_bytes = result.process_bytes();
  findings.devices.count = result.devices().count();
  for (const wire::DevicePair& pair : result.devices().not_peers())
    findings.devices.not_peers.emplace(pair.lower(), pair.higher());
  for (const config::GroupSpec& group : topology.groups) {
    if (auto missing = config::missingDevice(findings.devices, group)) findings.notes.push_back(*std::move(missing));
  }
  for (const wire::GroupFindings& group : result.groups())
    findings.weight_bytes.push_back(group.ready().weight_bytes());
  std::vector<v1::ModelLimits> stages;
  for (const size_t group : topology.order)
    stages.push_back(result.groups(static_cast<int>(group)).ready().limits());
  const JobLimits limits = mergeLimits(stages, topology.limits, topology.defaults);
  fillLimits(topology, limits, findings);
  LATENTD_RETURN_IF_ERROR(checkDefaults(topology, limits, findings));
  return findings;
}

Status checkDevices(const config::Topology& topology, const config::Findings& findings) {
  Problems problems(topology);
  for (size_t group = 0; group < topology.groups.size(); ++group) {
    const auto missing = config::missingDevice(findings.devices, topology.groups[group]);
    if (!missing) continue;
    problems.addAt(pathOf(topology, group, "devices"),
                   fmt::format("{}; use {}, or run it where there is one", *missing,
                               findings.devices.count == 0 ? "cpu" : "cpu or one that is here"));
  }
  return problems.status();
}

}  // namespace latentd::supervisor
