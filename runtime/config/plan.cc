#include "runtime/config/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "runtime/config/memory_estimate.h"
#include "runtime/config/value.h"

namespace latentd::config {
namespace {

// For people: three digits are enough.
std::string roughBytes(uint64_t bytes) {
  constexpr double kKiB = 1024;
  const char* const units[] = {"B", "KiB", "MiB", "GiB"};
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (amount >= kKiB && unit + 1 < std::size(units)) {
    amount /= kKiB;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", amount, units[unit]);
}

std::string devicesText(const GroupSpec& group) {
  std::string text;
  for (const Device& device : group.devices)
    text += (text.empty() ? "" : ", ") + toString(device);
  return text;
}

std::string shardText(const EdgeSpec& edge) {
  const auto dim = [](const std::optional<int32_t>& value, std::string_view whole) {
    return value ? fmt::format("sharded over dim {}", *value) : std::string(whole);
  };
  std::string text = fmt::format("producer {}, consumer {}", dim(edge.producer_shard_dim, "publishes whole"),
                                 dim(edge.consumer_shard_dim, "reads whole"));
  if (edge.tokens == TokenCuts{}) return text;
  const auto part = [](TokenCut cut) {
    return cut == TokenCut::kNone ? std::string("whole") : fmt::format("by {}", toString(cut));
  };
  return text + fmt::format("\n    in token layout: producer publishes {}, consumer reads {}",
                            part(edge.tokens.producer), part(edge.tokens.consumer));
}

std::string countedFolders(const MemoryEstimate& estimate) {
  if (estimate.folders.empty()) return "the whole model";
  return fmt::format("{}", fmt::join(estimate.folders, ", "));
}

std::string weightsText(const GroupSpec& group, uint64_t weight_bytes) {
  if (group.model_dir.empty()) return "    no model directory\n";
  const MemoryEstimate estimate = estimateMemory(group);
  return fmt::format("    model {}\n    weights of each rank: {} in memory as {}, {} on disk ({})\n", group.model_dir,
                     roughBytes(weight_bytes), toString(group.dtype), roughBytes(estimate.weight_bytes),
                     countedFolders(estimate));
}

// Where a group runs, and how its ranks work together.
std::string ranksText(const GroupSpec& group, const std::string& name) {
  std::string text =
      fmt::format("    {}{} {} on {}, {} {} each, {}\n", name, group.ranks(), group.ranks() == 1 ? "rank" : "ranks",
                  devicesText(group), group.threads, group.threads == 1 ? "thread" : "threads", toString(group.dtype));
  if (group.ranks() > 1) {
    text += fmt::format("    {}{} over {}: {}\n", name, toString(group.parallel), toString(group.communication),
                        group.communication_reason);
  }
  if (group.parallel.ulysses > 1) {
    text += fmt::format("    {}heads scattered over {}: {}\n", name, toString(group.ulysses_transport),
                        group.ulysses_transport_reason);
  }
  return text;
}

// Replicas have the places of the first one, on their own devices.
std::string placesText(const Topology& topology, const StageSpec& stage, const PlacesOf& places_of) {
  const GroupSpec& group = topology.groups[stage.groups.front()];
  if (group.ranks() == 1) return "";
  const std::vector<std::string> places = places_of(group);
  const bool is_replicated = stage.groups.size() > 1;
  std::string text = is_replicated ? "    ranks of each replica, devices in this order:\n" : "";
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const std::string device = is_replicated ? "" : " on " + toString(group.devices[rank]);
    text += fmt::format("      rank {}{}: {}\n", rank, device, places[rank]);
  }
  return text;
}

std::string stageText(const Topology& topology, const StageSpec& stage, uint64_t weight_bytes,
                      const PlacesOf& places_of) {
  const GroupSpec& group = topology.groups[stage.groups.front()];
  std::string text = fmt::format("  {}: {}.{}\n", stage.name, group.stage, group.method);
  if (stage.groups.size() == 1) {
    text += ranksText(group, "");
  } else {
    text += fmt::format("    {} replicas; a job uses the one with the least to do\n", stage.groups.size());
    for (const size_t replica : stage.groups)
      text += ranksText(topology.groups[replica], topology.groups[replica].name + ": ");
  }
  text += placesText(topology, stage, places_of);
  text += weightsText(group, weight_bytes);
  text += fmt::format("    memory limit {}\n",
                      group.memory_bytes_max ? formatBytes(*group.memory_bytes_max) : std::string("none"));
  if (group.stall) text += fmt::format("    stall {}\n", formatDuration(*group.stall));
  for (const auto& [name, option] : group.options)
    text += fmt::format("    option {}: {}\n", name, option);
  return text;
}

std::string channelText(const EdgeSpec& edge) {
  return fmt::format(
      "    transport {}: {}\n    {}\n    {} slots for each of at most {} profiles, unpooled at most {}\n",
      toString(edge.transport), edge.transport_reason, shardText(edge), edge.slots, edge.profiles_max,
      formatBytes(edge.unpooled_bytes_max));
}

// An edge of the file; of replicas, the pairs that have the same channel are told together.
std::string linkText(const Topology& topology, size_t link) {
  struct Alike {
    std::string channel;
    std::vector<std::string> names;
  };
  std::vector<Alike> kinds;
  for (const EdgeSpec& edge : topology.edges) {
    if (edge.link != link) continue;
    const std::string channel = channelText(edge);
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Alike& it) { return it.channel == channel; });
    if (kind == kinds.end()) kind = kinds.insert(kind, {channel, {}});
    kind->names.push_back(edge.name);
  }
  std::string text;
  for (const Alike& kind : kinds) {
    text += kinds.size() == 1 && kind.names.size() > 1
                ? fmt::format("  {}, {} pairs of replicas\n", topology.links[link].name, kind.names.size())
                : fmt::format("  {}\n", fmt::join(kind.names, ",\n  "));
    text += kind.channel;
  }
  return text;
}

std::string memoryText(const Topology& topology, const Findings& findings) {
  uint64_t weights = 0;
  uint64_t ranks = 0;
  for (size_t group = 0; group < topology.groups.size(); ++group) {
    weights += findings.weight_bytes.at(group) * topology.groups[group].ranks();
    ranks += topology.groups[group].ranks();
  }
  return fmt::format(
      "memory: {} in all: {} of weights, {} for each of {} worker processes\n  pools grow at first use of a profile to "
      "slots x its bytes\n",
      roughBytes(weights + ranks * findings.process_bytes), roughBytes(weights), roughBytes(findings.process_bytes),
      ranks);
}

template <class T>
std::string orNone(const std::optional<T>& value) {
  return value ? fmt::format("{:g}", static_cast<double>(*value)) : std::string("none");
}

std::string jobsText(const Topology& topology, const Findings& findings) {
  const Limits& limits = findings.limits;
  const JobDefaults& defaults = findings.defaults;
  std::string text = fmt::format(
      "jobs:\n  frames 1 + a multiple of {}, at most {}; sides multiples of {}, at most {} pixels\n  steps at most {}, "
      "guidance at most {:g}, fps at most {:g}, prompts at most {} bytes\n",
      findings.frame_step, limits.frames_max, findings.size_multiple, limits.pixels_max, limits.steps_max,
      limits.guidance_max, limits.fps_max, limits.prompt_bytes_max);
  const std::string size =
      defaults.width && defaults.height ? fmt::format("{}x{}", *defaults.width, *defaults.height) : std::string("none");
  text += fmt::format("  defaults: frames {}, size {}, steps {}, guidance {}, fps {}, flow_shift {}\n",
                      orNone(defaults.frames), size, orNone(defaults.steps), orNone(defaults.guidance),
                      orNone(defaults.fps), orNone(defaults.flow_shift));
  text += fmt::format("  queue of {}, aging {}; {} commands in flight for each group; {} finished jobs kept for {}\n",
                      topology.queue.length_max, formatDuration(topology.queue.aging), limits.in_flight_per_group,
                      limits.jobs_kept, formatDuration(limits.job_retention));
  return text;
}

std::string timesText(const Topology& topology) {
  const RestartSpec& restart = topology.restart;
  std::string text = "deadlines:\n";
  for (const auto& [name, time] : named(topology.deadlines))
    text += fmt::format("  {} {}\n", name, formatDuration(time));
  text += fmt::format("restarts: after {} to {}, given up after {} failed starts in a row\n",
                      formatDuration(restart.backoff_min), formatDuration(restart.backoff_max), restart.failures_max);
  const TraceSpec& trace = topology.trace;
  return text + (trace.spans_max == 0 ? "traces: none\n"
                                      : fmt::format("traces: at most {} spans of a command on a rank, {} of all jobs\n",
                                                    trace.spans_max, formatBytes(trace.bytes_max)));
}

}  // namespace

std::string planText(const Topology& topology, const Findings& findings, const PlacesOf& places_of) {
  std::string text =
      fmt::format("{}\n  API {}, HTTP {}\n  runtime directory in {}\n  results in {}, at most {}, kept {}\n",
                  topology.file, toString(topology.listen), toString(topology.http), topology.runtime_dir,
                  topology.spool.dir.empty() ? "the runtime directory" : topology.spool.dir,
                  formatBytes(topology.spool.bytes_max), formatDuration(topology.spool.retention));
  text += "groups, in the order in which a job runs them:\n";
  for (const StageSpec& stage : topology.stages)
    text += stageText(topology, stage, findings.weight_bytes.at(stage.groups.front()), places_of);
  text += topology.edges.empty() ? "edges: none\n" : "edges:\n";
  for (size_t link = 0; link < topology.links.size(); ++link)
    text += linkText(topology, link);
  text += memoryText(topology, findings) + jobsText(topology, findings) + timesText(topology);
  for (const std::string& note : findings.notes)
    text += "note: " + note + "\n";
  return text;
}

}  // namespace latentd::config
