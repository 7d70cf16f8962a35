#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <cuda_runtime_api.h>

#include "runtime/base/status.h"
#include "runtime/cuda/device.h"

namespace latentd::cuda {

// What travels to the process that imports memory.
using MemoryHandle = std::array<std::byte, sizeof(cudaIpcMemHandle_t)>;

// Owns device memory of its own allocation: never the caching allocator's, whose blocks move between tensors, and whose
// whole segment an importer would hold. The exporter frees it only after every importer has let go.
class DeviceBuffer {
 public:
  // RESOURCE_EXHAUSTED names the bytes.
  static StatusOr<DeviceBuffer> allocate(DeviceIndex device, uint64_t bytes);

  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), device_(other.device_) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~DeviceBuffer();

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  DeviceIndex device() const { return device_; }
  StatusOr<MemoryHandle> exportHandle() const;

 private:
  DeviceBuffer(void* data, uint64_t bytes, DeviceIndex device) : data_(data), bytes_(bytes), device_(device) {}

  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  DeviceIndex device_;
};

// A mapping of another process's DeviceBuffer. Pending work that uses it ends before it is destroyed.
class ImportedMemory {
 public:
  // `device` is where this process uses it; the memory may lie on a peer of it. A handle is imported once per process.
  static StatusOr<ImportedMemory> open(DeviceIndex device, const MemoryHandle& handle);

  ImportedMemory(ImportedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), device_(other.device_) {}
  ImportedMemory& operator=(ImportedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~ImportedMemory();

  void* data() const { return data_; }

 private:
  ImportedMemory(void* data, DeviceIndex device) : data_(data), device_(device) {}

  void* data_ = nullptr;
  DeviceIndex device_;
};

// Pins memory that exists already (a shared mapping), so that copies between it and a device run at link speed and in
// stream order. Owner: whoever owns the mapping, which outlives this.
class PinnedRange {
 public:
  // What this process may do with the mapping. Not every platform pins read-only ones: INTERNAL there.
  enum class Access { kRead, kReadWrite };
  static StatusOr<PinnedRange> pin(void* data, uint64_t bytes, Access access);

  PinnedRange(PinnedRange&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedRange& operator=(PinnedRange&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~PinnedRange();

  // Where the device finds it.
  StatusOr<std::byte*> onDevice(DeviceIndex device) const;

 private:
  explicit PinnedRange(void* data) : data_(data) {}

  void* data_ = nullptr;
};

}  // namespace latentd::cuda
