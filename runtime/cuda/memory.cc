#include "runtime/cuda/memory.h"

#include <cstring>
#include <string>

#include "runtime/cuda/cuda_status.h"

namespace latentd::cuda {

StatusOr<DeviceBuffer> DeviceBuffer::allocate(DeviceIndex device, uint64_t bytes) {
  const DeviceGuard guard(device);
  void* data = nullptr;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaMalloc(&data, bytes), "allocating " + std::to_string(bytes) +
                                                             " bytes on cuda:" + std::to_string(device.value));
  return DeviceBuffer(data, bytes, device);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  (void)cudaFree(data_);
}

StatusOr<MemoryHandle> DeviceBuffer::exportHandle() const {
  const DeviceGuard guard(device_);
  cudaIpcMemHandle_t raw;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaIpcGetMemHandle(&raw, data_), "exporting device memory");
  MemoryHandle handle;
  std::memcpy(handle.data(), &raw, sizeof(raw));
  return handle;
}

StatusOr<ImportedMemory> ImportedMemory::open(DeviceIndex device, const MemoryHandle& handle) {
  const DeviceGuard guard(device);
  cudaIpcMemHandle_t raw;
  std::memcpy(&raw, handle.data(), sizeof(raw));
  void* data = nullptr;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaIpcOpenMemHandle(&data, raw, cudaIpcMemLazyEnablePeerAccess),
                               "importing device memory on cuda:" + std::to_string(device.value));
  return ImportedMemory(data, device);
}

ImportedMemory::~ImportedMemory() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  (void)cudaIpcCloseMemHandle(data_);
}

StatusOr<PinnedRange> PinnedRange::pin(void* data, uint64_t bytes, Access access) {
  const unsigned flags = cudaHostRegisterPortable | (access == Access::kRead ? cudaHostRegisterReadOnly : 0u);
  LATENTD_CUDA_RETURN_IF_ERROR(cudaHostRegister(data, bytes, flags), "pinning " + std::to_string(bytes) + " bytes");
  return PinnedRange(data);
}

PinnedRange::~PinnedRange() {
  if (data_ != nullptr) (void)cudaHostUnregister(data_);
}

StatusOr<std::byte*> PinnedRange::onDevice(DeviceIndex device) const {
  const DeviceGuard guard(device);
  void* address = nullptr;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaHostGetDevicePointer(&address, data_, 0),
                               "addressing pinned memory from cuda:" + std::to_string(device.value));
  return static_cast<std::byte*>(address);
}

}  // namespace latentd::cuda
