#include "runtime/config/transport.h"

#include <algorithm>
#include <map>

namespace latentd::config {
namespace {

const Device* firstCudaDevice(const GroupSpec& group) {
  const auto device = std::find_if(group.devices.begin(), group.devices.end(),
                                   [](const Device& candidate) { return candidate.kind == Device::Kind::kCuda; });
  return device == group.devices.end() ? nullptr : &*device;
}

bool sameDevices(const GroupSpec& from, const GroupSpec& to) {
  const auto on = [&](const Device& device) {
    return std::find(from.devices.begin(), from.devices.end(), device) != from.devices.end();
  };
  return std::all_of(to.devices.begin(), to.devices.end(), on);
}

// Two GPUs of an edge that do not reach each other's memory.
std::optional<std::pair<Device, Device>> strangers(const GroupSpec& from, const GroupSpec& to,
                                                   const DeviceSurvey& survey) {
  for (const Device& source : from.devices) {
    for (const Device& target : to.devices) {
      if (survey.not_peers.count(std::minmax(source.index, target.index)) != 0) return std::pair(source, target);
    }
  }
  return std::nullopt;
}

}  // namespace

TransportChoice selectTransport(const GroupSpec& from, const GroupSpec& to, const DeviceSurvey& survey) {
  const Device* source = firstCudaDevice(from);
  const Device* target = firstCudaDevice(to);
  if (source == nullptr && target == nullptr) {
    return {Transport::kShm, "both groups are on the CPU of this host"};
  }
  if (source == nullptr || target == nullptr) {
    // Without names: pairs of replicas that differ in nothing else are told together.
    const std::string where = source == nullptr ? "the producer is on the CPU, the consumer on a GPU"
                                                : "the producer is on a GPU, the consumer on the CPU";
    return {Transport::kPinned, where + ": tensors are staged in pinned host memory"};
  }
  if (const auto pair = strangers(from, to, survey)) {
    return {Transport::kPinned, toString(pair->first) + " and " + toString(pair->second) +
                                    " are not peers: tensors are staged in pinned host memory"};
  }
  const std::string where =
      sameDevices(from, to) ? "both groups share their GPUs" : "both groups are on GPUs of this host";
  return {Transport::kCudaIpc, where + ": device memory is exported once and copied on the device"};
}

void settleTransports(const DeviceSurvey& survey, Topology& topology) {
  for (EdgeSpec& edge : topology.edges) {
    TransportChoice choice = selectTransport(topology.groups[edge.from], topology.groups[edge.to], survey);
    edge.transport = choice.transport;
    edge.transport_reason = std::move(choice.reason);
  }
}

std::optional<std::string> missingDevice(const DeviceSurvey& survey, const GroupSpec& group) {
  const auto absent = std::find_if(group.devices.begin(), group.devices.end(), [&](const Device& device) {
    return device.kind == Device::Kind::kCuda && device.index >= survey.count;
  });
  if (absent == group.devices.end()) return std::nullopt;
  return "group " + group.name + " is on " + toString(*absent) + ", and this machine has " +
         (survey.count == 0 ? "no GPU" : std::to_string(survey.count) + " GPU(s), counted from 0");
}

std::optional<std::string> turnsTaken(const DeviceSurvey& survey, const std::vector<GroupSpec>& groups) {
  if (survey.mps) return std::nullopt;
  std::map<uint32_t, int> processes;  // by GPU
  for (const GroupSpec& group : groups) {
    for (const Device& device : group.devices)
      processes[device.index] += device.kind == Device::Kind::kCuda && device.index < survey.count ? 1 : 0;
  }
  const auto shared = std::find_if(processes.begin(), processes.end(), [](const auto& gpu) { return gpu.second > 1; });
  if (shared == processes.end()) return std::nullopt;
  return "cuda:" + std::to_string(shared->first) + " has " + std::to_string(shared->second) +
         " worker processes, which take turns on it: NVIDIA's Multi-Process Service, started before latentd, lets them "
         "compute side by side (README.md, run on GPUs)";
}

}  // namespace latentd::config
