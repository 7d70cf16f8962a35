#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

namespace latentd::stages {

// Brings weights from mapped files to a device on a stream of its own: while the device reads one of two pinned buffers
// the host fills the other, with as many tensors or as large a piece of one as fit. Nothing is ever whole in host
// memory beside the file's own pages, and types are converted on the device. Owner: a WeightReader. Thread: one.
// Failure: may throw c10::Error, for want of memory or of a device.
class DeviceUpload {
 public:
  explicit DeviceUpload(at::Device device);

  // The tensor of `shape` whose elements of type `stored` lie at `data`, as `wanted`. Work that is submitted to the
  // device's current stream from now on finds it complete.
  at::Tensor upload(const std::byte* data, at::IntArrayRef shape, at::ScalarType stored, at::ScalarType wanted);

 private:
  // The device reads 32 MiB in 0.6 ms: long beside what it costs to change buffers, and short beside a model.
  static constexpr int64_t kBufferBytes = int64_t{32} << 20;

  struct Buffer {
    at::Tensor pinned;
    c10::cuda::CUDAEvent read;  // the device has read all that was put there
  };

  // Room for at most `bytes` bytes, and at least one element, in pinned memory that no copy uses.
  at::Tensor reserve(int64_t bytes);

  const at::Device device_;
  const c10::cuda::CUDAStream stream_;
  std::array<Buffer, 2> buffers_;
  size_t current_ = 0;
  int64_t used_ = 0;  // bytes of the current buffer
  c10::cuda::CUDAEvent allocated_;
  c10::cuda::CUDAEvent uploaded_;
};

}  // namespace latentd::stages
