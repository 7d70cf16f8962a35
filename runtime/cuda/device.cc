#include "runtime/cuda/device.h"

#include <utility>

#include <cstdio>

#include "runtime/cuda/cuda_status.h"

namespace latentd::cuda {

StatusOr<std::string> deviceUuid(DeviceIndex device) {
  cudaDeviceProp properties;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device.value),
                               "properties of cuda:" + std::to_string(device.value));
  // The form that nvidia-smi prints: 8-4-4-4-12 hexadecimal digits.
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text.push_back('-');
    text.append(digits);
  }
  return text;
}

StatusOr<DeviceMemory> deviceMemory(DeviceIndex device) {
  const DeviceGuard guard(device);
  LATENTD_CUDA_RETURN_IF_ERROR(guard.error(), "memory of cuda:" + std::to_string(device.value));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes),
                               "memory of cuda:" + std::to_string(device.value));
  return DeviceMemory{free_bytes, total_bytes};
}

uint32_t deviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return static_cast<uint32_t>(count);
  (void)cudaGetLastError();
  return 0;
}

StatusOr<bool> arePeers(DeviceIndex one, DeviceIndex other) {
  for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
    int possible = 0;
    LATENTD_CUDA_RETURN_IF_ERROR(cudaDeviceCanAccessPeer(&possible, from.value, to.value), "peer access");
    if (possible == 0) return false;
  }
  return true;
}

StatusOr<bool> isServedByMps(DeviceIndex device) {
  int enabled = 0;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&enabled, cudaDevAttrMpsEnabled, device.value),
                               "MPS on cuda:" + std::to_string(device.value));
  return enabled != 0;
}

}  // namespace latentd::cuda
