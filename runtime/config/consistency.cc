#include "runtime/config/consistency.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "runtime/config/communication.h"
#include "runtime/config/graph.h"

namespace latentd::config {
namespace {

Status checkNames(const Topology& topology, const Locations& locations) {
  std::map<std::string, size_t> first_use;
  for (size_t i = 0; i < topology.groups.size(); ++i) {
    const std::string& name = topology.groups[i].name;
    const auto [use, is_new] = first_use.emplace(name, i);
    if (!is_new) {
      return locations.refuse(indexed("groups", i) + ".name", "'" + name + "' is also the name of groups[" +
                                                                  std::to_string(use->second) +
                                                                  "]; give each group a name of its own");
    }
  }
  return {};
}

std::string counted(uint32_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// What makes ranks and degrees equal whatever the stage is: which degrees it has, only the worker program knows.
std::string ranksDiffer(const GroupSpec& group) {
  const MeshDegrees& degrees = group.parallel;
  const uint32_t product = degrees.product();
  const uint32_t others = product / degrees.dp;
  const std::string given = toString(degrees);
  std::string text = (given.empty() ? "without degrees there is " : given + " makes ") + counted(product, "rank") +
                     ", but devices lists " + std::to_string(group.ranks()) + "; the two must be equal: list " +
                     counted(product, "device");
  if (group.ranks() % others == 0) text += ", give dp: " + std::to_string(group.ranks() / others) + " (replicas)";
  return text + ", or change the degrees (latent-worker --describe has those of " + group.stage + ")";
}

Status checkRanks(const Topology& topology, const Locations& locations) {
  for (size_t i = 0; i < topology.groups.size(); ++i) {
    const GroupSpec& group = topology.groups[i];
    const auto other = std::find_if(group.devices.begin(), group.devices.end(),
                                    [&](const Device& device) { return device.kind != group.devices.front().kind; });
    if (other != group.devices.end()) {
      return locations.refuse(indexed("groups", i) + ".devices",
                              "lists " + toString(group.devices.front()) + " and " + toString(*other) +
                                  "; the ranks of a group are all on GPUs or all on the CPU");
    }
    if (group.parallel.product() == group.ranks()) continue;
    return locations.refuse(indexed("groups", i) + ".parallel", ranksDiffer(group));
  }
  return {};
}

Status settleCommunications(Topology& topology, const Locations& locations) {
  for (size_t i = 0; i < topology.groups.size(); ++i) {
    GroupSpec& group = topology.groups[i];
    const std::string section = indexed("groups", topology.stageOf(i).entry);
    if (const Status settled = settleCommunication(group); !settled.ok())
      return locations.refuse(section + ".communication", messageOf(settled));
    if (const Status settled = settleUlyssesTransport(group); !settled.ok())
      return locations.refuse(section + ".ulysses_transport", messageOf(settled));
  }
  return {};
}

Status resolveModels(Draft& draft, const Locations& locations) {
  for (size_t i = 0; i < draft.topology.groups.size(); ++i) {
    GroupSpec& group = draft.topology.groups[i];
    const bool is_own = !group.model_dir.empty();
    if (!is_own) group.model_dir = draft.model_dir;
    struct stat info {};
    if (group.model_dir.empty() || (::stat(group.model_dir.c_str(), &info) == 0 && S_ISDIR(info.st_mode))) continue;
    return locations.refuse(is_own ? indexed("groups", i) + ".model" : "model",
                            "'" + group.model_dir + "' is not a folder; give a diffusers directory, absolute or " +
                                "relative to this file's folder");
  }
  return {};
}

void fillThreads(Topology& topology, uint32_t cores) {
  uint32_t workers = 0;
  for (const GroupSpec& group : topology.groups)
    workers += group.ranks();
  for (GroupSpec& group : topology.groups) {
    if (group.threads == 0) group.threads = std::max(1u, cores / workers);
  }
}

bool isWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

bool isLoopback(const std::string& host) { return host == "localhost" || host == "127.0.0.1" || host == "::1"; }

Status checkEndpoints(const Topology& topology, const Locations& locations) {
  const Endpoint& listen = topology.listen;
  const Endpoint& http = topology.http;
  const bool is_same_host = listen.host == http.host || isWildcard(listen.host) || isWildcard(http.host) ||
                            (isLoopback(listen.host) && isLoopback(http.host));
  if (listen.port == 0 || listen.port != http.port || !is_same_host) return {};
  return locations.refuse("http", "'" + toString(http) + "' takes the port of listen (" + toString(listen) +
                                      "); give each a port of its own, or 0 for any free one");
}

Status checkRuntimeDir(const Topology& topology, const Locations& locations) {
  const size_t bytes_max = kSocketPathBytesMax - kSocketPathReserveBytes;
  if (topology.runtime_dir.size() <= bytes_max) return {};
  return locations.refuse("runtime_dir", "'" + topology.runtime_dir + "' has " +
                                             std::to_string(topology.runtime_dir.size()) + " bytes, at most " +
                                             std::to_string(bytes_max) +
                                             " leave room for socket paths; give a shorter one, such as /tmp");
}

// `low` must be below `high`; both are given with their path.
struct Ordered {
  const char* low_path;
  milliseconds low;
  const char* high_path;
  milliseconds high;
};

Status checkTimes(const Topology& topology, const Locations& locations) {
  const Deadlines& deadlines = topology.deadlines;
  const RestartSpec& restart = topology.restart;
  const Ordered pairs[] = {
      // Two signs of life must fit, or one late timer counts as a death.
      {"deadlines.heartbeat", 2 * deadlines.heartbeat, "deadlines.heartbeat_miss", deadlines.heartbeat_miss},
      {"restart.backoff_min", restart.backoff_min, "restart.backoff_max", restart.backoff_max},
  };
  for (const Ordered& pair : pairs) {
    if (pair.low <= pair.high) continue;
    return locations.refuse(pair.high_path, "'" + formatDuration(pair.high) + "' is too short for " + pair.low_path +
                                                "; give at least " + formatDuration(pair.low));
  }
  return {};
}

Status checkDefaults(const Topology& topology, const Locations& locations) {
  const JobDefaults& defaults = topology.defaults;
  const Limits& limits = topology.limits;
  const auto above = [&](const char* leaf, double value, const char* limit, double bound) -> Status {
    if (value <= bound) return {};
    const Rule number{Type::kReal, {}, {}};
    return locations.refuse(std::string("defaults.") + leaf, "'" + formatValue(number, value) + "' is above limits." +
                                                                 limit + " (" + formatValue(number, bound) +
                                                                 "); lower the one or raise the other");
  };
  LATENTD_RETURN_IF_ERROR(above("frames", defaults.frames.value_or(0), "frames_max", limits.frames_max));
  const double pixels = 1.0 * defaults.width.value_or(0) * defaults.height.value_or(0);
  LATENTD_RETURN_IF_ERROR(above("size", pixels, "pixels_max", static_cast<double>(limits.pixels_max)));
  LATENTD_RETURN_IF_ERROR(above("steps", defaults.steps.value_or(0), "steps_max", limits.steps_max));
  LATENTD_RETURN_IF_ERROR(above("guidance", defaults.guidance.value_or(0), "guidance_max", limits.guidance_max));
  LATENTD_RETURN_IF_ERROR(above("fps", defaults.fps.value_or(0), "fps_max", limits.fps_max));
  const double prompt_bytes = static_cast<double>(defaults.negative_prompt.value_or("").size());
  return above("negative_prompt", prompt_bytes, "prompt_bytes_max", limits.prompt_bytes_max);
}

}  // namespace

StatusOr<Topology> complete(Draft draft, const Locations& locations, uint32_t cores) {
  Topology& topology = draft.topology;
  LATENTD_RETURN_IF_ERROR(checkEndpoints(topology, locations));
  LATENTD_RETURN_IF_ERROR(checkRuntimeDir(topology, locations));
  LATENTD_RETURN_IF_ERROR(checkTimes(topology, locations));
  LATENTD_RETURN_IF_ERROR(checkDefaults(topology, locations));
  LATENTD_RETURN_IF_ERROR(checkNames(topology, locations));
  LATENTD_RETURN_IF_ERROR(checkRanks(topology, locations));
  LATENTD_RETURN_IF_ERROR(resolveModels(draft, locations));
  LATENTD_RETURN_IF_ERROR(connect(draft, locations));
  // Of each replica by itself: the ranks of different ones do not talk.
  LATENTD_RETURN_IF_ERROR(settleCommunications(topology, locations));
  fillThreads(topology, cores);
  return std::move(topology);
}

}  // namespace latentd::config
