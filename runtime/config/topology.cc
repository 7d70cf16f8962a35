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

std::vector<std::pair<std::string, milliseconds>> named(const Deadlines& deadlines) {
  return {{"load", deadlines.load},
          {"warm_up", deadlines.warm_up},
          {"job", deadlines.job},
          {"stall", deadlines.stall},
          {"heartbeat", deadlines.heartbeat},
          {"heartbeat_miss", deadlines.heartbeat_miss},
          {"shutdown_grace", deadlines.shutdown_grace},
          {"channel_progress", deadlines.channel_progress},
          {"encode", deadlines.encode}};
}

}  // namespace latentd::config
