#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAFunctions.h>

namespace latentd::stages::testing {

// Where cases tagged [cuda] compute.
inline constexpr const char* kCudaName = "cuda:0";
inline at::Device cudaDevice() { return {at::kCUDA, 0}; }

// False, with a message, where there is no such device: the case returns.
bool hasCuda();

// While it lives, an operator that makes the host wait for a device throws. Waits for events are no operators.
class HostNeverWaits {
 public:
  HostNeverWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~HostNeverWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
  HostNeverWaits(const HostNeverWaits&) = delete;
  HostNeverWaits& operator=(const HostNeverWaits&) = delete;
};

}  // namespace latentd::stages::testing
