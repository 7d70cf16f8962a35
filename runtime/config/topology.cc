#include "runtime/config/topology.h"

namespace latentd::config {

std::string toString(const Endpoint& endpoint) {
  const bool is_ipv6 = endpoint.host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

std::string toString(const Device& device) {
  return device.kind == Device::Kind::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::string_view toString(Transport transport) {
  switch (transport) {
    case Transport::kShm:
      return "shm";
    case Transport::kCudaIpc:
      return "cuda_ipc";
    case Transport::kPinned:
      return "pinned";
  }
  return "";
}

std::string_view toString(Communication communication) {
  switch (communication) {
    case Communication::kAuto:
      return "auto";
    case Communication::kGloo:
      return "gloo";
    case Communication::kNccl:
      return "nccl";
  }
  return "";
}

std::string_view toString(UlyssesTransport transport) {
  switch (transport) {
    case UlyssesTransport::kAuto:
      return "auto";
    case UlyssesTransport::kC10d:
      return "c10d";
    case UlyssesTransport::kShm:
      return "shm";
    case UlyssesTransport::kCudaIpc:
      return "cuda_ipc";
  }
  return "";
}

std::vector<std::string> Topology::stageNames() const {
  std::vector<std::string> names;
  for (const StageSpec& stage : stages)
    names.push_back(stage.name);
  return names;
}

size_t Topology::edgeBetween(size_t link, size_t from, size_t to) const {
  const LinkSpec& spec = links[link];
  const std::vector<size_t>& consumers = stages[spec.to].groups;
  return spec.first_edge + (from - stages[spec.from].groups.front()) * consumers.size() + (to - consumers.front());
}

std::vector<std::pair<std::string, milliseconds>> named(const Deadlines& deadlines) {
  return {{"load", deadlines.load},
          {"warm_up", deadlines.warm_up},
          {"job", deadlines.job},
          {"stall", deadlines.stall},
          {"heartbeat", deadlines.heartbeat},
          {"heartbeat_miss", deadlines.heartbeat_miss},
          {"shutdown_grace", deadlines.shutdown_grace},
          {"channel_progress", deadlines.channel_progress},
          {"collective", deadlines.collective},
          {"encode", deadlines.encode}};
}

}  // namespace latentd::config
