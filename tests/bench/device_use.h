#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

// What the stages' benchmarks ask of a device; nothing of a CPU.
namespace latentd::bench {

inline void waitForDevice(const std::string& device) {
  if (c10::Device(device).is_cuda()) c10::cuda::device_synchronize();
}

// The most that tensors took at once.
inline int64_t devicePeakMiB(const std::string& device) {
  if (!c10::Device(device).is_cuda()) return 0;
  constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::cuda::CUDACachingAllocator::getDeviceStats(c10::Device(device).index())
             .allocated_bytes[kAggregate]
             .peak >>
         20;
}

}  // namespace latentd::bench
