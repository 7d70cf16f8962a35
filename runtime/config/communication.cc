#include "runtime/config/communication.h"

#include <optional>
#include <string>

namespace latentd::config {
namespace {

// Why NCCL does not serve the group: "its ranks are on the CPU". Nothing where it does.
std::optional<std::string> obstacle(const GroupSpec& group) {
  if (group.devices.front().kind == Device::Kind::kCpu) return "its ranks are on the CPU";
  for (size_t rank = 0; rank < group.devices.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (group.devices[rank] != group.devices[other]) continue;
      return "its ranks " + std::to_string(other) + " and " + std::to_string(rank) + " share " +
             toString(group.devices[rank]);
    }
  }
  return std::nullopt;
}

}  // namespace

Status settleCommunication(GroupSpec& group) {
  const std::optional<std::string> hindered = obstacle(group);
  if (group.communication == Communication::kNccl && hindered) {
    return absl::InvalidArgumentError("'nccl' needs a GPU for each rank, and " + *hindered + "; give gloo or auto");
  }
  if (group.communication != Communication::kAuto) {
    group.communication_reason = kToldCommunication;
    return absl::OkStatus();
  }
  group.communication = hindered ? Communication::kGloo : Communication::kNccl;
  group.communication_reason = hindered.value_or("each of its ranks has a GPU of its own");
  return absl::OkStatus();
}

Status settleUlyssesTransport(GroupSpec& group) {
  const Device& first = group.devices.front();
  const bool on_cpu = first.kind == Device::Kind::kCpu;
  const UlyssesTransport direct = on_cpu ? UlyssesTransport::kShm : UlyssesTransport::kCudaIpc;
  if (group.ulysses_transport == UlyssesTransport::kAuto) {
    group.ulysses_transport = direct;
    group.ulysses_transport_reason = on_cpu ? "its ranks are on the CPU" : "its ranks are on GPUs";
    return absl::OkStatus();
  }
  if (group.ulysses_transport != direct && group.ulysses_transport != UlyssesTransport::kC10d) {
    return absl::InvalidArgumentError("'" + std::string(toString(group.ulysses_transport)) + "' needs ranks on " +
                                      (on_cpu ? "GPUs" : "the CPU") + ", and rank 0 is on " + toString(first) +
                                      "; give " + std::string(toString(direct)) + ", c10d or auto");
  }
  group.ulysses_transport_reason = kToldCommunication;
  return absl::OkStatus();
}

}  // namespace latentd::config
