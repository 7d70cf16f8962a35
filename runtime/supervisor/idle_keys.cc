#include "runtime/supervisor/idle_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "runtime/config/communication.h"
#include "runtime/config/schema.h"
#include "runtime/config/value.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

using Options = google::protobuf::RepeatedPtrField<wire::StageOption>;

constexpr std::string_view kParallel = "parallel.";
constexpr std::string_view kOptions = "options.";
constexpr std::string_view kMethod = "method.";

// Collects what is idle, of keys that the file itself has.
class Notes {
 public:
  explicit Notes(const config::Topology& topology) : locations_(topology.locations) {}

  void add(const std::string& path, std::string_view why) {
    if (locations_.has(path))
      notes_.push_back(messageOf(locations_.refuse(path, fmt::format("has no effect {}", why))));
  }
  // Unless the value is what it would be without the key.
  void addUnlessDefault(const std::string& path, const config::Value& value, std::string_view why) {
    const config::Key& key = *keys_.find(path);
    const StatusOr<config::Value> absent = config::parseScalar(key.rule, key.default_text);
    if (!absent.ok() || config::formatValue(key.rule, *absent) != config::formatValue(key.rule, value)) add(path, why);
  }
  std::vector<std::string> take() { return std::move(notes_); }

 private:
  const config::Locations& locations_;
  const config::KeyTable keys_;
  std::vector<std::string> notes_;
};

bool isGiven(const config::GroupSpec& group, const Options& options, std::string_view name) {
  const auto given = group.options.find(std::string(name));
  if (given == group.options.end()) return false;
  return std::none_of(options.begin(), options.end(), [&](const wire::StageOption& option) {
    return option.name() == name && option.default_value() == given->second;
  });
}

// Of stages/option_table.h.
bool holds(const config::GroupSpec& group, const Options& options, std::string_view condition) {
  if (condition.starts_with(kOptions)) return isGiven(group, options, condition.substr(kOptions.size()));
  if (condition.starts_with(kMethod)) return group.method == condition.substr(kMethod.size());
  return std::any_of(kMeshDims.begin(), kMeshDims.end(), [&](MeshDim dim) {
    return condition.substr(kParallel.size()) == toString(dim) && group.parallel.of(dim) > 1;
  });
}

// "parallel.ring above 1", "options.tile_height", "method source".
std::string conditionText(std::string_view condition) {
  if (condition.starts_with(kParallel)) return fmt::format("{} above 1", condition);
  if (condition.starts_with(kMethod)) return fmt::format("method {}", condition.substr(kMethod.size()));
  return std::string(condition);
}

void noteOptions(const config::GroupSpec& group, const std::string& section, const Options& options, Notes& notes) {
  const auto is_met = [&](const std::string& condition) { return holds(group, options, condition); };
  for (const wire::StageOption& option : options) {
    if (!isGiven(group, options, option.name())) continue;
    const std::string path = config::joined(section, "options." + option.name());
    const auto& needs = option.matters_with();
    if (!needs.empty() && std::none_of(needs.begin(), needs.end(), is_met)) {
      std::vector<std::string> texts;
      std::transform(needs.begin(), needs.end(), std::back_inserter(texts), conditionText);
      notes.add(path, fmt::format("without {}", fmt::join(texts, " or ")));
    }
    const auto& idle = option.idle_with();
    const auto silences = std::find_if(idle.begin(), idle.end(), is_met);
    if (silences != idle.end()) notes.add(path, fmt::format("with {}", conditionText(*silences)));
  }
}

// Of jobs that do not ask for more; nothing where they have guidance.
std::string unguidedJobs(const JobLimits& limits) {
  const double guidance = limits.defaults.guidance_scale();
  if (!limits.defaults.has_guidance_scale() || guidance > 1) return "";
  return fmt::format("on jobs that leave guidance at its default, {:g}", guidance);
}

void noteGroups(const config::Topology& topology, const wire::PreflightResult& result, const JobLimits& limits,
                Notes& notes) {
  std::vector<const config::StageSpec*> in_file(topology.stages.size());
  for (const config::StageSpec& stage : topology.stages)
    in_file[stage.entry] = &stage;
  for (const config::StageSpec* stage : in_file) {
    const config::GroupSpec& group = topology.groups[stage->groups.front()];
    const std::string section = config::indexed("groups", stage->entry);
    const wire::GroupFindings& found = result.groups(static_cast<int>(stage->entry));
    if (group.ranks() == 1 && group.communication_reason == config::kToldCommunication) {
      notes.add(section + ".communication", stage->groups.size() == 1
                                                ? "on a group of one rank, which has nobody to talk to"
                                                : "on replicas of one rank, which do not talk to each other");
    }
    if (group.parallel.ulysses == 1 && group.ulysses_transport_reason == config::kToldCommunication)
      notes.add(section + ".ulysses_transport", "without parallel.ulysses above 1");
    if (group.parallel.cfg > 1 && topology.limits.guidance_max <= 1) {
      notes.add(section + ".parallel.cfg", "with limits.guidance_max at most 1: jobs have no second pass");
    } else if (const std::string jobs = unguidedJobs(limits); group.parallel.cfg > 1 && !jobs.empty()) {
      notes.add(section + ".parallel.cfg", jobs + ": they have no second pass");
    }
    if (found.ready().weight_bytes() == 0) notes.add(section + ".model", "on a stage that reads no weights");
    noteOptions(group, section, found.options(), notes);
  }
}

void noteEdges(const config::Topology& topology, Notes& notes) {
  for (size_t link = 0; link < topology.links.size(); ++link) {
    const config::EdgeSpec& edge = topology.edges[topology.links[link].first_edge];
    const std::string section = config::indexed("edges", link);
    if (topology.groups[edge.from].ranks() == 1)
      notes.add(section + ".producer_shard_dim", "on a producer of one rank, which publishes all");
    if (topology.groups[edge.to].ranks() == 1)
      notes.add(section + ".consumer_shard_dim", "on a consumer of one rank, which reads all");
  }
}

// The model of all groups that name none.
void noteModel(const config::Topology& topology, const wire::PreflightResult& result, Notes& notes) {
  bool is_taken = false;
  for (const config::StageSpec& stage : topology.stages) {
    if (topology.locations.has(config::indexed("groups", stage.entry) + ".model")) continue;
    if (result.groups(static_cast<int>(stage.entry)).ready().weight_bytes() > 0) return;
    is_taken = true;
  }
  notes.add("model", is_taken ? "on stages that read no weights" : "where every group has a model of its own");
}

void noteDaemon(const config::Topology& topology, const JobLimits& merged, Notes& notes) {
  if (std::all_of(topology.groups.begin(), topology.groups.end(),
                  [](const config::GroupSpec& group) { return group.stall.has_value(); })) {
    notes.add("deadlines.stall", "where every group has a stall of its own");
  }
  if (const std::string jobs = unguidedJobs(merged);
      !topology.defaults.negative_prompt.value_or("").empty() && !jobs.empty())
    notes.add("defaults.negative_prompt", jobs);
  const bool shared = std::any_of(topology.groups.begin(), topology.groups.end(),
                                  [](const config::GroupSpec& group) { return group.ranks() > 1; });
  if (!shared) {
    notes.addUnlessDefault("deadlines.collective", topology.deadlines.collective, "where no group has several ranks");
  }
  if (topology.trace.spans_max == 0) {
    notes.addUnlessDefault("trace.bytes_max", topology.trace.bytes_max,
                           "with trace.spans_max 0, which keeps no traces");
  }
  const auto above = [&](const std::string& path, uint64_t limit, uint64_t taken) {
    if (limit > taken) notes.addUnlessDefault(path, limit, fmt::format("above what the model takes, {}", taken));
  };
  above("limits.frames_max", topology.limits.frames_max, merged.frames_max);
  above("limits.prompt_bytes_max", topology.limits.prompt_bytes_max, merged.prompt_bytes_max);
}

}  // namespace

std::vector<std::string> idleKeys(const config::Topology& topology, const wire::PreflightResult& result,
                                  const JobLimits& limits) {
  Notes notes(topology);
  noteModel(topology, result, notes);
  noteGroups(topology, result, limits, notes);
  noteEdges(topology, notes);
  noteDaemon(topology, limits, notes);
  return notes.take();
}

}  // namespace latentd::supervisor
