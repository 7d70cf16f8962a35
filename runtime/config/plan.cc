#include "runtime/config/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

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
  return fmt::format("producer {}, consumer {}", dim(edge.producer_shard_dim, "publishes whole"),
                     dim(edge.consumer_shard_dim, "reads whole"));
}

std::string countedFolders(const MemoryEstimate& estimate) {
  if (estimate.folders.empty()) return "the whole model";
  return fmt::format("{}", fmt::join(estimate.folders, ", "));
}

std::string groupText(const GroupSpec& group) {
  std::string text = fmt::format("  {}: {}.{}\n    {} {} on {}, {} {} each, {}\n", group.name, group.stage,
                                 group.method, group.ranks(), group.ranks() == 1 ? "rank" : "ranks", devicesText(group),
                                 group.threads, group.threads == 1 ? "thread" : "threads", toString(group.dtype));
  if (group.model_dir.empty()) {
    text += "    no model directory\n";
  } else {
    const MemoryEstimate estimate = estimateMemory(group);
    text += fmt::format("    model {}\n    weights {} on disk for each rank ({})\n", group.model_dir,
                        roughBytes(estimate.weight_bytes), countedFolders(estimate));
  }
  text += fmt::format("    memory limit {}\n",
                      group.memory_bytes_max ? formatBytes(*group.memory_bytes_max) : std::string("none"));
  for (const auto& [name, option] : group.options)
    text += fmt::format("    option {}: {}\n", name, option);
  return text;
}

std::string edgeText(const EdgeSpec& edge) {
  return fmt::format(
      "  {}\n    transport {}: {}\n    {}\n    {} slots for each of at most {} profiles, unpooled at most {}\n",
      edge.name, toString(edge.transport), edge.transport_reason, shardText(edge), edge.slots, edge.profiles_max,
      formatBytes(edge.unpooled_bytes_max));
}

uint64_t totalWeights(const Topology& topology) {
  uint64_t bytes = 0;
  for (const GroupSpec& group : topology.groups)
    bytes += estimateMemory(group).weight_bytes * group.ranks();
  return bytes;
}

nlohmann::json groupJson(const GroupSpec& group) {
  const MemoryEstimate estimate = estimateMemory(group);
  nlohmann::json devices = nlohmann::json::array();
  for (const Device& device : group.devices)
    devices.push_back(toString(device));
  const ParallelDegrees& degrees = group.parallel;
  nlohmann::json json = {{"name", group.name},
                         {"stage", group.stage},
                         {"method", group.method},
                         {"model", group.model_dir},
                         {"ranks", group.ranks()},
                         {"devices", std::move(devices)},
                         {"parallel",
                          {{"cfg", degrees.cfg},
                           {"ring", degrees.ring},
                           {"ulysses", degrees.ulysses},
                           {"pp", degrees.pp},
                           {"tp", degrees.tp}}},
                         {"threads", group.threads},
                         {"dtype", toString(group.dtype)},
                         {"options", group.options},
                         {"weight_bytes_per_rank", estimate.weight_bytes},
                         {"weight_folders", estimate.folders},
                         {"memory_bytes_max", nullptr}};
  if (group.memory_bytes_max) json["memory_bytes_max"] = *group.memory_bytes_max;
  return json;
}

nlohmann::json edgeJson(const Topology& topology, const EdgeSpec& edge) {
  const auto dim = [](const std::optional<int32_t>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  return {{"name", edge.name},
          {"from", topology.groups[edge.from].name},
          {"to", topology.groups[edge.to].name},
          {"transport", toString(edge.transport)},
          {"transport_reason", edge.transport_reason},
          {"producer_shard_dim", dim(edge.producer_shard_dim)},
          {"consumer_shard_dim", dim(edge.consumer_shard_dim)},
          {"slots", edge.slots},
          {"profiles_max", edge.profiles_max},
          {"unpooled_bytes_max", edge.unpooled_bytes_max}};
}

}  // namespace

std::string planText(const Topology& topology) {
  std::string text =
      fmt::format("{}\n  API {}, HTTP {}\n  runtime directory in {}\n  results in {}, at most {}, kept {}\n",
                  topology.file, toString(topology.listen), toString(topology.http), topology.runtime_dir,
                  topology.spool.dir.empty() ? "the runtime directory" : topology.spool.dir,
                  formatBytes(topology.spool.bytes_max), formatDuration(topology.spool.retention));
  text += "groups, in the order in which a job runs them:\n";
  for (size_t group : topology.order)
    text += groupText(topology.groups[group]);
  text += topology.edges.empty() ? "edges: none\n" : "edges:\n";
  for (const EdgeSpec& edge : topology.edges)
    text += edgeText(edge);
  text +=
      fmt::format("memory: {} of weights in all workers; pools grow at first use of a profile to slots x its bytes\n",
                  roughBytes(totalWeights(topology)));
  return text;
}

std::string planJson(const Topology& topology) {
  nlohmann::json groups = nlohmann::json::array();
  nlohmann::json edges = nlohmann::json::array();
  for (size_t group : topology.order)
    groups.push_back(groupJson(topology.groups[group]));
  for (const EdgeSpec& edge : topology.edges)
    edges.push_back(edgeJson(topology, edge));
  const nlohmann::json json = {{"file", topology.file},
                               {"listen", toString(topology.listen)},
                               {"http", toString(topology.http)},
                               {"runtime_dir", topology.runtime_dir},
                               {"spool", {{"dir", topology.spool.dir}, {"bytes_max", topology.spool.bytes_max}}},
                               {"groups", std::move(groups)},
                               {"edges", std::move(edges)},
                               {"sink", topology.groups[topology.sink].name},
                               {"weight_bytes", totalWeights(topology)}};
  // Paths and options may hold any bytes; replacing is better than an exception in a report.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace latentd::config
