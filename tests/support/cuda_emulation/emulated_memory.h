#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>

#include "runtime/base/mutex.h"
#include "tests/support/cuda_emulation/shared_object.h"

namespace latentd::testing {

// Device memory without a device: what this process allocated, imported and pinned. As strict as CUDA where that is
// known: only whole blocks are exported, nothing is imported twice, no copy leaves its allocation.
// Owner: the process. Thread: any. Failure: the error that CUDA gives.
class EmulatedMemory {
 public:
  static constexpr uint64_t kDeviceBytes = uint64_t{64} << 30;

  static EmulatedMemory& instance();

  cudaError_t allocate(uint64_t bytes, void** address);
  // The caller waits for the device first, as cudaFree() does.
  cudaError_t free(void* address);
  cudaError_t exportHandle(const void* address, cudaIpcMemHandle_t* handle);
  cudaError_t import(const cudaIpcMemHandle_t& handle, void** address);
  // At once: what still reads it is a fault.
  cudaError_t close(void* address);
  void pin(const void* address, uint64_t bytes);
  cudaError_t unpin(const void* address);

  // Neither a device's nor pinned: the runtime reads it before a call returns, and has written it when one returns.
  bool isPageable(const void* address);
  // If it begins in a device's memory, it ends there.
  bool isInBounds(const void* address, uint64_t bytes);
  uint64_t freeBytes();

 private:
  using Objects = std::map<const void*, std::unique_ptr<SharedObject>>;

  const SharedObject* find(const void* address) const REQUIRES(mutex_);

  Mutex mutex_;
  Objects allocated_ GUARDED_BY(mutex_);
  Objects imported_ GUARDED_BY(mutex_);
  std::map<const void*, uint64_t> pinned_ GUARDED_BY(mutex_);  // sizes
  uint64_t allocated_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace latentd::testing
