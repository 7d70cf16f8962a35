#include "tools/ctl/admin_commands.h"

#include <fmt/format.h>

#include <concepts>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/mesh_degrees.h"
#include "runtime/base/version.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

// "mesh of denoise: cfg 2 x ulysses 2 over gloo (its ranks are on the CPU), heads scattered over shm (...)".
std::string meshLine(const v1::Group& group) {
  std::string text = fmt::format("mesh of {}: {} over {} ({})", group.name(), toString(degreesOf(group.degrees())),
                                 group.communication(), group.communication_reason());
  if (!group.ulysses_transport().empty()) {
    text += fmt::format(", heads scattered over {} ({})", group.ulysses_transport(), group.ulysses_transport_reason());
  }
  return text + "\n";
}

// "cfg 0, ulysses 1"; of a group of one rank "-".
std::string placeText(const v1::Worker& worker) {
  std::string text;
  for (const v1::MeshCoordinate& coordinate : worker.place())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", coordinate.dimension(), coordinate.index());
  return text.empty() ? "-" : text;
}

std::string groupTable(const v1::Topology& topology) {
  std::vector<std::vector<std::string>> rows{{"GROUP", "STAGE", "RANK", "PLACE", "DEVICE", "STATE", "PID", "THREADS",
                                              "MEMORY", "DEVICE MEMORY", "EPOCH", "RESTARTS"}};
  for (const v1::Group& group : topology.groups()) {
    for (const v1::Worker& worker : group.workers()) {
      rows.push_back({group.name(), group.stage(), std::to_string(worker.rank()), placeText(worker), worker.device(),
                      stateName(worker.state()), worker.pid() == 0 ? "-" : std::to_string(worker.pid()),
                      std::to_string(group.threads()), formatBytes(worker.memory_bytes()),
                      worker.device() == "cpu" ? "-" : formatBytes(worker.device_memory_bytes()),
                      std::to_string(group.epoch()), std::to_string(group.restarts())});
    }
  }
  std::string text = formatTable(rows);
  for (const v1::Group& group : topology.groups()) {
    if (!group.communication().empty()) text += meshLine(group);
  }
  for (const v1::Group& group : topology.groups()) {
    if (!group.has_last_failure()) continue;
    text += fmt::format("last failure of {}: {}: {}\n", group.name(), statusCodeName(group.last_failure().code()),
                        group.last_failure().message());
  }
  return text;
}

// Who does what of an edge that more than one rank publishes or reads.
std::string edgeRankTable(const google::protobuf::RepeatedPtrField<v1::Edge>& edges) {
  std::vector<std::vector<std::string>> rows{{"EDGE", "SIDE", "RANK", "HAND-OFFS", "BYTES", "IN USE"}};
  for (const v1::Edge& edge : edges) {
    if (edge.producers_size() <= 1 && edge.consumers_size() <= 1) continue;
    for (const v1::EdgeRank& rank : edge.producers()) {
      rows.push_back({edge.name(), "publishes", std::to_string(rank.rank()), std::to_string(rank.handoffs()),
                      formatBytes(rank.bytes()), std::to_string(rank.slots_in_use())});
    }
    for (const v1::EdgeRank& rank : edge.consumers())
      rows.push_back({edge.name(), "reads", std::to_string(rank.rank()), "-", formatBytes(rank.bytes()), "-"});
  }
  return rows.size() > 1 ? "\n" + formatTable(rows) : "";
}

std::string edgeTable(const google::protobuf::RepeatedPtrField<v1::Edge>& edges) {
  std::vector<std::vector<std::string>> rows{{"EDGE", "TRANSPORT", "SLOTS", "IN USE", "HAND-OFFS", "BYTES", "REASON"}};
  for (const v1::Edge& edge : edges) {
    rows.push_back({edge.name(), edge.transport(), std::to_string(edge.slots()), std::to_string(edge.slots_in_use()),
                    std::to_string(edge.handoffs()), formatBytes(edge.bytes()), edge.transport_reason()});
  }
  return formatTable(rows) + edgeRankTable(edges);
}

// "at most 81", "at most 4096 pixels"; what a model does not limit it leaves at 0.
std::string atMost(uint64_t limit, const std::string& unit = "") {
  return limit == 0 ? "any" : fmt::format("at most {}{}", limit, unit);
}

// "0 to 20"; of a daemon that tells no limit, nothing.
std::string upTo(const std::string& least, double limit) {
  return limit == 0 ? "" : fmt::format("{}{}", least, formatNumber(limit));
}

// The same after what values must be a multiple of; of 1 all are.
std::string multiplesAtMost(const std::string& multiples, uint32_t factor, const std::string& at_most) {
  if (factor <= 1) return at_most;
  const std::string accepted = fmt::format("{} {}", multiples, factor);
  return at_most == "any" ? accepted : accepted + ", " + at_most;
}

// What a model has no default of it leaves at 0.
std::string orDash(const std::string& text) { return text == "0" || text == "0x0" ? "-" : text; }
std::string orDash(std::integral auto value) { return orDash(std::to_string(value)); }
std::string orDash(double value) { return orDash(formatNumber(value)); }

std::string limitLines(const v1::Topology& topology) {
  if (!topology.has_limits()) return "limits and defaults are known once the model is loaded\n";
  const v1::ModelLimits& limits = topology.limits();
  const v1::JobParameters& defaults = limits.defaults();
  std::vector<std::vector<std::string>> rows{{"PARAMETER", "DEFAULT", "ACCEPTED"}};
  rows.push_back({"frames", orDash(defaults.frames()),
                  multiplesAtMost("1 + k *", limits.frame_step(), atMost(limits.frames_max()))});
  const std::string tall = limits.height_shards() <= 1
                               ? ""
                               : fmt::format(", height at least {}", limits.size_multiple() * limits.height_shards());
  rows.push_back(
      {"size", orDash(fmt::format("{}x{}", defaults.width(), defaults.height())),
       multiplesAtMost("multiples of", limits.size_multiple(), atMost(limits.pixels_max(), " pixels")) + tall});
  rows.push_back({"steps", orDash(defaults.steps()), atMost(limits.steps_max())});
  rows.push_back({"guidance", defaults.has_guidance_scale() ? formatNumber(defaults.guidance_scale()) : "-",
                  upTo("0 to ", limits.guidance_max())});
  rows.push_back({"flow shift", orDash(defaults.flow_shift()),
                  upTo(formatNumber(limits.flow_shift_min()) + " to ", limits.flow_shift_max())});
  rows.push_back({"fps", orDash(defaults.fps()), upTo("0.01 to ", limits.fps_max())});
  rows.push_back({"prompt", "-", atMost(limits.prompt_bytes_max(), " bytes")});
  return formatTable(rows);
}

}  // namespace

ExitCode runTopology(const GlobalOptions& global) {
  const Client client(global);
  v1::Topology topology;
  const grpc::Status status =
      client.call(client.admin(), &v1::Admin::Stub::GetTopology, v1::GetTopologyRequest(), &topology);
  if (!status.ok()) return client.fail(status);
  if (global.json) {
    print(toJson(topology, true));
  } else {
    print(groupTable(topology) + "\n" + edgeTable(topology.edges()) + "\n" + limitLines(topology));
  }
  return ExitCode::kOk;
}

ExitCode runEdges(const GlobalOptions& global) {
  const Client client(global);
  v1::GetEdgesResponse response;
  const grpc::Status status = client.call(client.admin(), &v1::Admin::Stub::GetEdges, v1::GetEdgesRequest(), &response);
  if (!status.ok()) return client.fail(status);
  print(global.json ? toJson(response, true) : edgeTable(response.edges()));
  return ExitCode::kOk;
}

ExitCode runVersion(const GlobalOptions& global) {
  const Client client(global);
  v1::Version ours;
  ours.set_version(std::string(kVersion));
  ours.set_api(std::string(kApiVersion));
  v1::Version theirs;
  const grpc::Status status =
      client.call(client.admin(), &v1::Admin::Stub::GetVersion, v1::GetVersionRequest(), &theirs);
  if (global.json) {
    const auto line = [](const v1::Version& version) {
      std::string text = toJson(version, false);
      text.pop_back();
      return text;
    };
    print(fmt::format("{{\"client\":{},\"daemon\":{}}}\n", line(ours), status.ok() ? line(theirs) : "null"));
  } else {
    print(fmt::format("latentctl {} ({})\n", ours.version(), ours.api()));
    if (status.ok()) print(fmt::format("latentd {} ({}) at {}\n", theirs.version(), theirs.api(), global.endpoint));
  }
  return status.ok() ? ExitCode::kOk : client.fail(status);
}

}  // namespace latentd::ctl
