#include "runtime/worker/device_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "runtime/cuda/memory.h"
#include "runtime/worker/tensor_convert.h"

namespace latentd::worker {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

TorchMemory memoryOf(c10::DeviceIndex device) {
  const auto stats = allocator::getDeviceStats(device);
  return {static_cast<uint64_t>(stats.allocated_bytes[kAggregate].current),
          static_cast<uint64_t>(stats.reserved_bytes[kAggregate].current)};
}

std::vector<cuda::DeviceIndex> devicesInUse() {
  std::vector<cuda::DeviceIndex> devices;
  if (!allocator::get()->initialized()) return devices;
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    const auto stats = allocator::getDeviceStats(device);
    if (stats.num_device_alloc + stats.num_ooms > 0) devices.emplace_back(device);
  }
  return devices;
}

std::string mebibytes(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

TorchMemory torchMemory(const std::string& device) {
  const auto parsed = parseDevice(device);
  const bool known = parsed.ok() && parsed->type == channel::DeviceType::kCuda && allocator::get()->initialized();
  if (!known || static_cast<int>(parsed->index) >= c10::cuda::device_count()) return {};
  return memoryOf(static_cast<c10::DeviceIndex>(parsed->index));
}

std::string describeDeviceMemory() {
  std::string text;
  for (const cuda::DeviceIndex device : devicesInUse()) {
    const TorchMemory ours = memoryOf(static_cast<c10::DeviceIndex>(device.value));
    text += "; cuda:" + std::to_string(device.value) + ": " + mebibytes(ours.allocated_bytes) + " in tensors, " +
            mebibytes(ours.reserved_bytes) + " reserved";
    const auto all = cuda::deviceMemory(device);
    if (all.ok()) text += ", " + mebibytes(all->free_bytes) + " of " + mebibytes(all->total_bytes) + " free";
  }
  return text;
}

bool releaseAndProbeDevices(uint64_t bytes) {
  const std::vector<cuda::DeviceIndex> devices = devicesInUse();
  try {
    if (!devices.empty()) allocator::emptyCache();
  } catch (const c10::Error&) {
    return false;
  }
  return std::all_of(devices.begin(), devices.end(),
                     [&](cuda::DeviceIndex device) { return cuda::DeviceBuffer::allocate(device, bytes).ok(); });
}

bool deviceLost() {
  const std::vector<cuda::DeviceIndex> devices = devicesInUse();
  return std::any_of(devices.begin(), devices.end(),
                     [](cuda::DeviceIndex device) { return !cuda::deviceMemory(device).ok(); });
}

}  // namespace latentd::worker
