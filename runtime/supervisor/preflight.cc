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
#include "runtime/supervisor/idle_keys.h"
#include "runtime/supervisor/job_validation.h"
#include "runtime/supervisor/preflight_process.h"
#include "runtime/supervisor/token_cuts.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

// Where the file says the field of a stage's groups; for what it leaves to a default, the group.
std::string pathOf(const config::Topology& topology, size_t place, const std::string& field) {
  const std::string section = config::indexed("groups", topology.stages[place].entry);
  const std::string own = config::joined(section, field);
  if (topology.locations.has(own)) return own;
  if (field == "model" && topology.locations.has("model")) return "model";
  if (field != "method") return own;
  for (size_t link = 0; link < topology.links.size(); ++link) {
    if (topology.links[link].from == place) return config::indexed("edges", link) + ".from";
    if (topology.links[link].to == place) return config::indexed("edges", link) + ".to";
  }
  return own;
}

// Collects what is wrong, so that a file is put right in one go.
class Problems {
 public:
  explicit Problems(const config::Topology& topology) : topology_(topology) {}

  void add(size_t place, const std::string& field, std::string_view message) {
    const config::StageSpec& stage = topology_.stages[place];
    const std::string& registered = topology_.groups[stage.groups.front()].stage;
    addAt(pathOf(topology_, place, field), fmt::format("{} ({}): {}", stage.name, registered, message));
  }
  void addAt(const std::string& path, std::string_view message) {
    text_ += (text_.empty() ? "" : "\n") + messageOf(topology_.locations.refuse(path, message));
  }
  Status status() const { return text_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(text_); }

 private:
  const config::Topology& topology_;
  std::string text_;
};

// What is true of one replica is true of all.
std::vector<GroupIndex> firstReplicas(const config::Topology& topology) {
  std::vector<GroupIndex> groups;
  for (size_t group = 0; group < topology.groups.size(); ++group) {
    if (topology.stageOf(group).groups.front() == group) groups.emplace_back(static_cast<uint32_t>(group));
  }
  return groups;
}

// The answer for a stage: the request has the file's order.
const wire::GroupFindings& findingsOf(const config::StageSpec& stage, const wire::PreflightResult& result) {
  return result.groups(static_cast<int>(stage.entry));
}

std::vector<const Methods*> methodsByPlace(const config::Topology& topology, const wire::PreflightResult& result) {
  std::vector<const Methods*> methods;
  for (const config::StageSpec& stage : topology.stages)
    methods.push_back(&findingsOf(stage, result).ready().methods());
  return methods;
}

Status checkGroups(const config::Topology& topology, const wire::PreflightResult& result) {
  Problems problems(topology);
  for (const GroupIndex group : firstReplicas(topology)) {
    const size_t place = topology.groups[group.value].place;
    const wire::GroupFindings& found = findingsOf(topology.stages[place], result);
    if (found.status().code() != 0) {
      problems.add(place, found.field(), found.status().message());
    } else if (const Status fits = checkMethod(topology, group, found.ready().methods()); !fits.ok()) {
      problems.add(place, fieldOf(fits), messageOf(fits));
    }
  }
  LATENTD_RETURN_IF_ERROR(problems.status());
  if (const auto missing = findMissingInput(topology, methodsByPlace(topology, result))) {
    problems.addAt(pathOf(topology, missing->place, "method"), messageOf(missing->status));
  }
  return problems.status();
}

StatusOr<std::vector<config::TokenCuts>> findTokenCuts(const config::Topology& topology,
                                                       const wire::PreflightResult& result) {
  auto cuts = tokenCuts(topology, methodsByPlace(topology, result));
  if (cuts.ok()) return cuts;
  Problems problems(topology);
  problems.addAt(std::string(fieldOf(cuts.status())), messageOf(cuts.status()));
  return problems.status();
}

// The key of `defaults` that gives a field of a job.
std::string_view defaultsKeyOf(std::string_view field) {
  if (field == "width" || field == "height") return "size";
  return field == "guidance_scale" ? "guidance" : field;
}

// What the model gives where the file gives nothing: one of its limits may be below that.
Status checkModelDefaults(const config::Topology& topology, const v1::JobParameters& defaults) {
  Problems problems(topology);
  const auto check = [&](std::string_view key, double own, std::string_view limit, double bound) {
    if (own <= bound || topology.locations.has(fmt::format("defaults.{}", key))) return;
    const std::string_view unit = key == "size" ? " in pixels" : "";
    problems.addAt(
        fmt::format("limits.{}", limit),
        fmt::format("'{}' is below the model's default {}{}, {}; give defaults.{} within it, or raise it to {}", bound,
                    key, unit, own, key, own));
  };
  const config::Limits& limits = topology.limits;
  check("frames", defaults.frames(), "frames_max", limits.frames_max);
  check("size", 1.0 * defaults.width() * defaults.height(), "pixels_max", static_cast<double>(limits.pixels_max));
  check("steps", defaults.steps(), "steps_max", limits.steps_max);
  check("guidance", defaults.guidance_scale(), "guidance_max", limits.guidance_max);
  check("fps", defaults.fps(), "fps_max", limits.fps_max);
  return problems.status();
}

Status checkDefaults(const config::Topology& topology, const JobLimits& limits, config::Findings& findings) {
  const std::vector<std::string> missing = missingParameters(limits.defaults);
  if (!missing.empty()) {
    findings.notes.push_back(
        fmt::format("jobs must say {}: neither defaults nor the model do", fmt::join(missing, ", ")));
  }
  LATENTD_RETURN_IF_ERROR(checkModelDefaults(topology, limits.defaults));
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
                                     const std::string& worker_binary, int interrupt_fd) {
  wire::PreflightRequest request;
  for (const GroupIndex group : firstReplicas(topology))
    *request.add_groups() = loadOf(topology, group, Rank(0));
  LATENTD_ASSIGN_OR_RETURN(const wire::PreflightResult result,
                           runPreflight(spawner, worker_binary, request, topology.deadlines.load, interrupt_fd));
  LATENTD_RETURN_IF_ERROR(checkGroups(topology, result));

  config::Findings findings;
  LATENTD_ASSIGN_OR_RETURN(findings.token_cuts, findTokenCuts(topology, result));
  findings.process_bytes = result.process_bytes();
  findings.devices.count = result.devices().count();
  findings.devices.mps = result.devices().mps();
  for (const wire::DevicePair& pair : result.devices().not_peers())
    findings.devices.not_peers.emplace(pair.lower(), pair.higher());
  for (const config::GroupSpec& group : topology.groups) {
    if (const auto missing = config::missingDevice(findings.devices, group))
      findings.notes.push_back(
          messageOf(topology.locations.refuse(pathOf(topology, group.place, "devices"), *missing)));
  }
  if (const auto turns = config::turnsTaken(findings.devices, topology.groups)) findings.notes.push_back(*turns);
  for (size_t group = 0; group < topology.groups.size(); ++group)
    findings.weight_bytes.push_back(findingsOf(topology.stageOf(group), result).ready().weight_bytes());
  std::vector<v1::ModelLimits> stages;
  for (const config::StageSpec& stage : topology.stages)
    stages.push_back(findingsOf(stage, result).ready().limits());
  const JobLimits limits = mergeLimits(stages, topology.limits, topology.defaults);
  fillLimits(topology, limits, findings);
  const std::vector<std::string> idle = idleKeys(topology, result, limits);
  findings.notes.insert(findings.notes.end(), idle.begin(), idle.end());
  LATENTD_RETURN_IF_ERROR(checkDefaults(topology, limits, findings));
  return findings;
}

Status checkDevices(const config::Topology& topology, const config::Findings& findings) {
  Problems problems(topology);
  for (size_t group = 0; group < topology.groups.size(); ++group) {
    const auto missing = config::missingDevice(findings.devices, topology.groups[group]);
    if (!missing) continue;
    problems.addAt(pathOf(topology, topology.groups[group].place, "devices"),
                   fmt::format("{}; use {}, or run it where there is one", *missing,
                               findings.devices.count == 0 ? "cpu" : "cpu or one that is here"));
  }
  return problems.status();
}

}  // namespace latentd::supervisor
