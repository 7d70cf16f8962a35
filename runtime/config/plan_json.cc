#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/config/memory_estimate.h"
#include "runtime/config/plan.h"

namespace latentd::config {
namespace {

nlohmann::json groupJson(const Topology& topology, size_t index, uint64_t weight_bytes) {
  const GroupSpec& group = topology.groups[index];
  const MemoryEstimate estimate = estimateMemory(group);
  nlohmann::json devices = nlohmann::json::array();
  for (const Device& device : group.devices)
    devices.push_back(toString(device));
  nlohmann::json degrees = nlohmann::json::object();
  for (const MeshDim dim : kMeshDims) {
    if (dim != MeshDim::kDataParallel) degrees[std::string(toString(dim))] = group.parallel.of(dim);
  }
  nlohmann::json json = {{"name", group.name},
                         {"replica_of", nullptr},
                         {"stage", group.stage},
                         {"method", group.method},
                         {"model", group.model_dir},
                         {"ranks", group.ranks()},
                         {"devices", std::move(devices)},
                         {"parallel", std::move(degrees)},
                         {"communication", nullptr},
                         {"communication_reason", nullptr},
                         {"ulysses_transport", nullptr},
                         {"ulysses_transport_reason", nullptr},
                         {"threads", group.threads},
                         {"dtype", toString(group.dtype)},
                         {"options", group.options},
                         {"weight_bytes_per_rank", weight_bytes},
                         {"weight_file_bytes", estimate.weight_bytes},
                         {"weight_folders", estimate.folders},
                         {"memory_bytes_max", nullptr},
                         {"stall_ms", nullptr}};
  if (topology.stageOf(index).groups.size() > 1) json["replica_of"] = topology.stageOf(index).name;
  if (group.ranks() > 1) {
    json["communication"] = toString(group.communication);
    json["communication_reason"] = group.communication_reason;
  }
  if (group.parallel.ulysses > 1) {
    json["ulysses_transport"] = toString(group.ulysses_transport);
    json["ulysses_transport_reason"] = group.ulysses_transport_reason;
  }
  if (group.memory_bytes_max) json["memory_bytes_max"] = *group.memory_bytes_max;
  if (group.stall) json["stall_ms"] = group.stall->count();
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
          {"producer_tokens", toString(edge.tokens.producer)},
          {"consumer_tokens", toString(edge.tokens.consumer)},
          {"slots", edge.slots},
          {"profiles_max", edge.profiles_max},
          {"unpooled_bytes_max", edge.unpooled_bytes_max}};
}

template <class T>
nlohmann::json orNull(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json deadlinesJson(const Deadlines& deadlines) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, time] : named(deadlines))
    json[name] = time.count();
  return json;
}

nlohmann::json restartJson(const RestartSpec& restart) {
  return {{"backoff_min_ms", restart.backoff_min.count()},
          {"backoff_max_ms", restart.backoff_max.count()},
          {"stable_after_ms", restart.stable_after.count()},
          {"failures_max", restart.failures_max}};
}

nlohmann::json limitsJson(const Findings& findings) {
  const Limits& limits = findings.limits;
  return {{"frame_step", findings.frame_step},
          {"size_multiple", findings.size_multiple},
          {"frames_max", limits.frames_max},
          {"pixels_max", limits.pixels_max},
          {"steps_max", limits.steps_max},
          {"guidance_max", limits.guidance_max},
          {"fps_max", limits.fps_max},
          {"prompt_bytes_max", limits.prompt_bytes_max},
          {"jobs_kept", limits.jobs_kept},
          {"job_retention_ms", limits.job_retention.count()},
          {"in_flight_per_group", limits.in_flight_per_group}};
}

nlohmann::json defaultsJson(const JobDefaults& defaults) {
  return {{"frames", orNull(defaults.frames)},         {"width", orNull(defaults.width)},
          {"height", orNull(defaults.height)},         {"steps", orNull(defaults.steps)},
          {"guidance", orNull(defaults.guidance)},     {"fps", orNull(defaults.fps)},
          {"flow_shift", orNull(defaults.flow_shift)}, {"negative_prompt", orNull(defaults.negative_prompt)}};
}

}  // namespace

std::string planJson(const Topology& topology, const Findings& findings) {
  nlohmann::json groups = nlohmann::json::array();
  nlohmann::json edges = nlohmann::json::array();
  for (const StageSpec& stage : topology.stages) {
    for (const size_t group : stage.groups)
      groups.push_back(groupJson(topology, group, findings.weight_bytes.at(group)));
  }
  for (const EdgeSpec& edge : topology.edges)
    edges.push_back(edgeJson(topology, edge));
  const nlohmann::json json = {
      {"file", topology.file},
      {"listen", toString(topology.listen)},
      {"http", toString(topology.http)},
      {"runtime_dir", topology.runtime_dir},
      {"spool",
       {{"dir", topology.spool.dir},
        {"bytes_max", topology.spool.bytes_max},
        {"retention_ms", topology.spool.retention.count()}}},
      {"groups", std::move(groups)},
      {"edges", std::move(edges)},
      {"sink", topology.stages.back().name},
      {"process_bytes", findings.process_bytes},
      {"queue", {{"length_max", topology.queue.length_max}, {"aging_ms", topology.queue.aging.count()}}},
      {"deadlines_ms", deadlinesJson(topology.deadlines)},
      {"restart", restartJson(topology.restart)},
      {"trace", {{"spans_max", topology.trace.spans_max}, {"bytes_max", topology.trace.bytes_max}}},
      {"limits", limitsJson(findings)},
      {"defaults", defaultsJson(findings.defaults)},
      {"notes", findings.notes}};
  // Paths and options may hold any bytes; replacing is better than an exception in a report.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace latentd::config
