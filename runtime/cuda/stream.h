#pragma once

#include <utility>

#include <cuda_runtime_api.h>

#include "runtime/base/status.h"
#include "runtime/cuda/device.h"

namespace latentd::cuda {

// A stream that somebody else owns, on a known device. There is no conversion from 0: the legacy default stream orders
// itself against everything and is never meant.
class StreamView {
 public:
  StreamView(cudaStream_t stream, DeviceIndex device) : stream_(stream), device_(device) {}
  cudaStream_t get() const { return stream_; }
  DeviceIndex device() const { return device_; }

 private:
  cudaStream_t stream_;
  DeviceIndex device_;
};

// Owns a non-blocking stream. Destruction does not wait for its work: whoever owns memory that the work reads waits.
class Stream {
 public:
  enum class Priority { kNormal, kHigh };

  static StatusOr<Stream> create(DeviceIndex device, Priority priority = Priority::kNormal);
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)), device_(other.device_) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~Stream();

  StreamView view() const { return {stream_, device_}; }
  // Blocks the host until the stream's work is done.
  Status synchronize() const;

 private:
  Stream(cudaStream_t stream, DeviceIndex device) : stream_(stream), device_(device) {}

  cudaStream_t stream_ = nullptr;
  DeviceIndex device_;
};

}  // namespace latentd::cuda
