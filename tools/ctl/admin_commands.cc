#include "tools/ctl/admin_commands.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/version.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

std::string groupTable(const v1::Topology& topology) {
  std::vector<std::vector<std::string>> rows{
      {"GROUP", "STAGE", "RANK", "DEVICE", "STATE", "PID", "THREADS", "MEMORY", "DEVICE MEMORY", "EPOCH", "RESTARTS"}};
  for (const v1::Group& group : topology.groups()) {
    for (const v1::Worker& worker : group.workers()) {
      rows.push_back({group.name(), group.stage(), std::to_string(worker.rank()), worker.device(),
                      workerStateName(worker.state()), std::to_string(worker.pid()), std::to_string(group.threads()),
                      formatBytes(worker.memory_bytes()), formatBytes(worker.device_memory_bytes()),
                      std::to_string(group.epoch()), std::to_string(group.restarts())});
    }
  }
  std::string text = formatTable(rows);
  for (const v1::Group& group : topology.groups()) {
    if (!group.has_last_failure()) continue;
    text += fmt::format("last failure of {}: {}: {}\n", group.name(), statusCodeName(group.last_failure().code()),
                        group.last_failure().message());
  }
  return text;
}

std::string edgeTable(const google::protobuf::RepeatedPtrField<v1::Edge>& edges) {
  std::vector<std::vector<std::string>> rows{{"EDGE", "TRANSPORT", "SLOTS", "IN USE", "HAND-OFFS", "BYTES", "REASON"}};
  for (const v1::Edge& edge : edges) {
    rows.push_back({edge.name(), edge.transport(), std::to_string(edge.slots()), std::to_string(edge.slots_in_use()),
                    std::to_string(edge.handoffs()), formatBytes(edge.bytes()), edge.transport_reason()});
  }
  return formatTable(rows);
}

std::string limitLines(const v1::ModelLimits& limits) {
  const v1::JobParameters& defaults = limits.defaults();
  return fmt::format("frames: 1 + k * {}, at most {}\nsize: multiples of {}, at most {} pixels\nsteps: at most {}\n",
                     limits.frame_step(), limits.frames_max(), limits.size_multiple(), limits.pixels_max(),
                     limits.steps_max()) +
         fmt::format("prompt: at most {} bytes\ndefaults: {} frames, {}x{}, {} steps, guidance {}, {} fps\n",
                     limits.prompt_bytes_max(), defaults.frames(), defaults.width(), defaults.height(),
                     defaults.steps(), formatNumber(defaults.guidance_scale()), formatNumber(defaults.fps()));
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
    print(groupTable(topology) + "\n" + edgeTable(topology.edges()) + "\n" + limitLines(topology.limits()));
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

ExitCode runDrain(const GlobalOptions& global, std::optional<double> deadline_seconds) {
  const Client client(global);
  v1::DrainRequest request;
  if (deadline_seconds) *request.mutable_deadline() = toDuration(*deadline_seconds);
  v1::DrainResponse response;
  const grpc::Status status = client.call(client.admin(), &v1::Admin::Stub::Drain, request, &response);
  if (!status.ok()) return client.fail(status);
  print(global.json ? toJson(response, true)
                    : fmt::format("draining: no new jobs; {} left before the daemon ends\n", response.jobs_left()));
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
