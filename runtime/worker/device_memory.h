#pragma once

#include <cstdint>
#include <string>

// CUDA devices as torch uses them in this process. Any thread, once WorkerDevice::open() has returned; nothing here is
// the first to touch a device, and in a process that uses none there is nothing to tell and nothing to fail.
namespace latentd::worker {

struct TorchMemory {
  uint64_t allocated_bytes = 0;  // tensors
  uint64_t reserved_bytes = 0;   // of the caching allocator, tensors included
};

// device: "cuda:N".
TorchMemory torchMemory(const std::string& device);

// "; cuda:0: 2 MiB in tensors, 4 MiB reserved, 100 MiB of 143771 MiB free" for each device in use.
std::string describeDeviceMemory();

// Gives back what the caching allocator keeps idle. False: not even `bytes` can be had of a device in use.
bool releaseAndProbeDevices(uint64_t bytes);

// An error sticks to a device in use: every later call fails with it, and only a new process helps.
bool deviceLost();

}  // namespace latentd::worker
