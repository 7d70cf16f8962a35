#include "tests/channel/cuda/device_tensors.h"

#include <algorithm>

#include "runtime/cuda/cuda_status.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {
namespace {

TensorView viewOf(std::shared_ptr<cuda::DeviceBuffer> buffer, DType dtype, const std::vector<int64_t>& shape) {
  TensorView view{dtype, shape, contiguousStrides(shape), buffer->data(),
                  Device{DeviceType::kCuda, static_cast<uint32_t>(buffer->device().value)}};
  view.owner = std::move(buffer);
  return view;
}

uint64_t bytesOf(DType dtype, const std::vector<int64_t>& shape) {
  return std::max<uint64_t>(1, static_cast<uint64_t>(elementCount(shape)) * byteSize(dtype));
}

}  // namespace

cuda::DeviceIndex consumerDevice() { return cuda::DeviceIndex(cuda::deviceCount() > 1 ? 1 : 0); }

TensorView deviceTensor(DType dtype, const std::vector<int64_t>& shape, cuda::DeviceIndex device) {
  auto buffer = cuda::DeviceBuffer::allocate(device, bytesOf(dtype, shape));
  REQUIRE(buffer.status().ToString() == "OK");
  return viewOf(std::make_shared<cuda::DeviceBuffer>(*std::move(buffer)), dtype, shape);
}

void fillBytes(const TensorView& view, uint8_t value, cuda::StreamView stream) {
  REQUIRE(cudaMemsetAsync(view.data, value, byteCount(view), stream.get()) == cudaSuccess);
}

void upload(const TensorView& view, const void* host, cuda::StreamView stream) {
  REQUIRE(cudaMemcpyAsync(view.data, host, byteCount(view), cudaMemcpyHostToDevice, stream.get()) == cudaSuccess);
}

std::vector<std::byte> download(const TensorView& view, cuda::StreamView stream) {
  std::vector<std::byte> bytes(byteCount(view));
  REQUIRE(cudaMemcpyAsync(bytes.data(), view.data, bytes.size(), cudaMemcpyDeviceToHost, stream.get()) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream.get()) == cudaSuccess);
  return bytes;
}

bool allBytes(const TensorView& view, uint8_t value, cuda::StreamView stream) {
  const std::vector<std::byte> bytes = download(view, stream);
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == std::byte{value}; });
}

StatusOr<TensorView> DeviceCache::allocate(DType dtype, const std::vector<int64_t>& shape, Device) {
  const uint64_t bytes = bytesOf(dtype, shape);
  for (const auto& buffer : buffers_) {
    if (buffer.use_count() == 1 && buffer->bytes() == bytes) return viewOf(buffer, dtype, shape);
  }
  LATENTD_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::allocate(device_, bytes));
  buffers_.push_back(std::make_shared<cuda::DeviceBuffer>(std::move(buffer)));
  return viewOf(buffers_.back(), dtype, shape);
}

}  // namespace latentd::channel::testing
