#include "stages/weights/device_upload.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace latentd::stages {
namespace {

// Of a tensor in a buffer: any element type's, and that of wide copies.
constexpr int64_t kAlignment = 256;

// By torch's copy, which uses all its threads: one core reads mapped pages at a tenth of the link's speed.
void copyMapped(const std::byte* from, const at::Tensor& to) {
  // from_blob wants a mutable pointer; what it makes is only read.
  to.copy_(at::from_blob(const_cast<std::byte*>(from), to.sizes(), at::kByte));
}

}  // namespace

DeviceUpload::DeviceUpload(at::Device device)
    : device_(device), stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
  for (Buffer& buffer : buffers_) {
    buffer.pinned = at::empty({kBufferBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }
}

at::Tensor DeviceUpload::reserve(int64_t bytes) {
  if (used_ == kBufferBytes) {
    buffers_[current_].read.record(stream_);
    current_ = (current_ + 1) % buffers_.size();
    buffers_[current_].read.synchronize();
    used_ = 0;
  }
  const int64_t taken = std::min(bytes, kBufferBytes - used_);
  const at::Tensor room = buffers_[current_].pinned.narrow(0, used_, taken);
  used_ += (taken + kAlignment - 1) / kAlignment * kAlignment;
  return room;
}

at::Tensor DeviceUpload::upload(const std::byte* data, at::IntArrayRef shape, at::ScalarType stored,
                                at::ScalarType wanted) {
  // Of the current stream, which uses and frees it; its memory may have been in use there until now.
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device_.index());
  const at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(wanted).device(device_));
  allocated_.record(current);
  allocated_.block(stream_);
  const at::Tensor flat = tensor.view({-1});
  const auto element = static_cast<int64_t>(c10::elementSize(stored));
  {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    for (int64_t done = 0; done < flat.numel();) {
      const at::Tensor bytes = reserve((flat.numel() - done) * element);
      copyMapped(data + done * element, bytes);
      const at::Tensor piece = bytes.view(stored);
      const at::Tensor target = flat.narrow(0, done, piece.numel());
      // Raw to the device first: a conversion in the copy would be one on the host.
      target.copy_(stored == wanted ? piece : piece.to(device_, /*non_blocking=*/true), /*non_blocking=*/true);
      done += piece.numel();
    }
  }
  uploaded_.record(stream_);
  uploaded_.block(current);
  return tensor;
}

}  // namespace latentd::stages
