#include "runtime/cuda/stream.h"

#include <string>

#include "runtime/cuda/cuda_status.h"

namespace latentd::cuda {

StatusOr<Stream> Stream::create(DeviceIndex device, Priority priority) {
  const DeviceGuard guard(device);
  int least = 0;
  int greatest = 0;
  LATENTD_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
  cudaStream_t stream = nullptr;
  LATENTD_CUDA_RETURN_IF_ERROR(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == Priority::kHigh ? greatest : least),
      "creating a stream on cuda:" + std::to_string(device.value));
  return Stream(stream, device);
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  const DeviceGuard guard(device_);
  (void)cudaStreamDestroy(stream_);
}

Status Stream::synchronize() const {
  LATENTD_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_), "waiting for a stream");
  return absl::OkStatus();
}

}  // namespace latentd::cuda
