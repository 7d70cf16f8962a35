#pragma once

#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::cuda {

// Position of a device among those this process sees.
using DeviceIndex = StrongId<struct DeviceIndexTag, int>;

// Makes a device current and restores the former one. Every CUDA call sits under one, for a device we were given.
class DeviceGuard {
 public:
  explicit DeviceGuard(DeviceIndex device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != device.value) {
      error_ = cudaSetDevice(device.value);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~DeviceGuard() {
    if (changed_) (void)cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  // For calls that name no object of the device, and so would silently mean another one.
  cudaError_t error() const { return error_; }

 private:
  cudaError_t error_ = cudaSuccess;
  int previous_ = 0;
  bool changed_ = false;
};

// "GPU-8f6c2a1e-...": the name by which two processes agree on a device, whatever CUDA_VISIBLE_DEVICES says in each.
StatusOr<std::string> deviceUuid(DeviceIndex device);

// Device memory, from the driver: what is in use by all processes together.
struct DeviceMemory {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};
StatusOr<DeviceMemory> deviceMemory(DeviceIndex device);

// Devices that this process sees; 0 where there is no driver.
uint32_t deviceCount();

// Kernels and copies of each can reach the other's memory. Makes no context.
StatusOr<bool> arePeers(DeviceIndex one, DeviceIndex other);

// Processes that use the device share one context through the Multi-Process Service (MPS), and so run side by side.
// Else the contexts of theirs take turns.
StatusOr<bool> isServedByMps(DeviceIndex device);

}  // namespace latentd::cuda
