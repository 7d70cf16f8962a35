#pragma once

#include <memory>
#include <vector>

#include "channel/channel.h"
#include "channel/cuda_options.h"
#include "runtime/cuda/memory.h"

// Tensors on a device, for tests of the data plane: no torch.
namespace latentd::channel::testing {

inline constexpr cuda::DeviceIndex kProducerDevice{0};
// A peer where there is one, so that a machine with two runs everything across them; else the producer's.
cuda::DeviceIndex consumerDevice();

// Dense, of a fresh allocation; its content is whatever lay there.
TensorView deviceTensor(DType dtype, const std::vector<int64_t>& shape, cuda::DeviceIndex device);

// In stream order: every byte becomes `value`, or the elements are those of `host`.
void fillBytes(const TensorView& view, uint8_t value, cuda::StreamView stream);
void upload(const TensorView& view, const void* host, cuda::StreamView stream);

// Waits for the stream. Every byte of a dense tensor is `value`.
bool allBytes(const TensorView& view, uint8_t value, cuda::StreamView stream);
std::vector<std::byte> download(const TensorView& view, cuda::StreamView stream);

// Hands the same buffer out again once the tensor was let go, as a caching allocator does: in stream order.
class DeviceCache final : public Allocator {
 public:
  explicit DeviceCache(cuda::DeviceIndex device) : device_(device) {}
  StatusOr<TensorView> allocate(DType dtype, const std::vector<int64_t>& shape, Device device) override;

 private:
  const cuda::DeviceIndex device_;
  std::vector<std::shared_ptr<cuda::DeviceBuffer>> buffers_;  // owners: this, and tensors that are out
};

}  // namespace latentd::channel::testing
