#include "runtime/worker/worker_device.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <utility>
#include <vector>

#include "channel/buffer_cache.h"
#include "channel/cuda_ipc_backend.h"
#include "channel/shm_backend.h"
#include "mesh/scalar_type.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/worker/tensor_convert.h"

namespace latentd::worker {
namespace {

// Received tensors come from torch's caching allocator, in the order of the compute stream. What torch throws passes
// through to the exception boundary around the command.
class TorchAllocator final : public channel::Allocator {
 public:
  StatusOr<channel::TensorView> allocate(DType dtype, const std::vector<int64_t>& shape,
                                         channel::Device device) override {
    const auto index = static_cast<c10::DeviceIndex>(device.index);
    return toView(at::empty(shape, at::TensorOptions().dtype(toScalarType(dtype)).device(at::kCUDA, index)));
  }
};

std::string nameOf(const channel::Device& device) {
  return device.type == channel::DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace

WorkerDevice::WorkerDevice(const channel::Device& device, std::optional<cuda::StreamView> stream,
                           std::chrono::milliseconds device_timeout)
    : device_(device), stream_(stream) {
  if (stream) {
    cuda_ipc_ = channel::makeCudaIpcBackend({*stream, device_timeout});
    pinned_ = channel::makePinnedBackend({*stream, device_timeout});
  } else {
    host_ = channel::makeShmBackend();
  }
}

StatusOr<std::unique_ptr<WorkerDevice>> WorkerDevice::open(const channel::Device& device,
                                                           std::chrono::milliseconds device_timeout) {
  std::optional<cuda::StreamView> stream;
  if (device.type == channel::DeviceType::kCuda) {
    int count = 0;
    LATENTD_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&count), "looking for " + nameOf(device));
    if (device.index >= static_cast<uint32_t>(count)) {
      return absl::FailedPreconditionError("there is no " + nameOf(device) + ": this process sees " +
                                           std::to_string(count) + " devices, counted from 0");
    }
    // torch does so when a device is first used, on the thread that uses it; who asks for figures meanwhile finds an
    // allocator that says it is there, and is not yet.
    c10::cuda::CUDACachingAllocator::init(count);
    const auto index = static_cast<c10::DeviceIndex>(device.index);
    // Not the default stream, which orders itself against all others.
    stream.emplace(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index).stream(), cuda::DeviceIndex(index));
  }
  return std::unique_ptr<WorkerDevice>(new WorkerDevice(device, stream, device_timeout));
}

void WorkerDevice::enter() const {
  if (!stream_) return;
  const auto index = static_cast<c10::DeviceIndex>(device_.index);
  (void)cudaSetDevice(device_.index);
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(stream_->get(), index));
}

StatusOr<std::shared_ptr<channel::Backend>> WorkerDevice::backend(const std::string& transport) const {
  std::shared_ptr<channel::Backend> backend;
  if (transport == "shm") backend = host_;
  if (transport == "cuda_ipc") backend = cuda_ipc_;
  // The CPU's end of a pinned edge is plain shared memory.
  if (transport == "pinned") backend = stream_ ? pinned_ : host_;
  if (backend != nullptr) return backend;
  return absl::InvalidArgumentError("transport \"" + transport + "\" does not reach " + nameOf(device_));
}

std::unique_ptr<channel::Allocator> WorkerDevice::makeAllocator(uint64_t idle_bytes_max) const {
  if (stream_) return std::make_unique<TorchAllocator>();
  return std::make_unique<channel::BufferCache>(idle_bytes_max);
}

}  // namespace latentd::worker
