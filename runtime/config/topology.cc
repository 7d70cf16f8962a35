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
  }
  return "";
}

}  // namespace latentd::config
