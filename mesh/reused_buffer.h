#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace latentd::mesh {

// Memory that one tensor after another uses: it grows to the largest of them and stays. A value type. Owner: whoever
// communicates out of it or into it, and reuses it only once that is over.
class ReusedBuffer {
 public:
  // A contiguous tensor of that shape, type and device, of any content.
  at::Tensor view(at::IntArrayRef shape, const at::TensorOptions& options);
  uint64_t bytes() const { return memory_.defined() ? memory_.nbytes() : 0; }

 private:
  at::Tensor memory_;  // bytes
};

}  // namespace latentd::mesh
