#include "runtime/config/transport.h"

#include <algorithm>

namespace latentd::config {
namespace {

const Device* firstCudaDevice(const GroupSpec& group) {
  const auto device = std::find_if(group.devices.begin(), group.devices.end(),
                                   [](const Device& candidate) { return candidate.kind == Device::Kind::kCuda; });
  return device == group.devices.end() ? nullptr : &*device;
}

}  // namespace

StatusOr<TransportChoice> selectTransport(const GroupSpec& from, const GroupSpec& to) {
  for (const GroupSpec* group : {&from, &to}) {
    if (const Device* device = firstCudaDevice(*group)) {
      return makeStatus(absl::StatusCode::kUnimplemented, "no transport of this build takes tensors from " + from.name +
                                                              " to " + to.name + ": group " + group->name + " is on " +
                                                              toString(*device) + "; use devices: [cpu]");
    }
  }
  return TransportChoice{Transport::kShm, "both groups are on the CPU of this host"};
}

}  // namespace latentd::config
