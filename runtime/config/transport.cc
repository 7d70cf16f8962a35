#include "runtime/config/transport.h"

#include <algorithm>

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

}  // namespace

TransportChoice selectTransport(const GroupSpec& from, const GroupSpec& to) {
  const Device* source = firstCudaDevice(from);
  const Device* target = firstCudaDevice(to);
  if (source == nullptr && target == nullptr) {
    return {Transport::kShm, "both groups are on the CPU of this host"};
  }
  if (source == nullptr || target == nullptr) {
    const bool up = source == nullptr;
    return {Transport::kPinned, "group " + (up ? to : from).name + " is on " + toString(up ? *target : *source) +
                                    ", group " + (up ? from : to).name +
                                    " on the CPU: tensors are staged in pinned host memory"};
  }
  const std::string where =
      sameDevices(from, to) ? "both groups share their GPUs" : "both groups are on GPUs of this host";
  return {Transport::kCudaIpc, where + ": device memory is exported once and copied on the device"};
}

}  // namespace latentd::config
