#include "mesh/reused_buffer.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

namespace latentd::mesh {

at::Tensor ReusedBuffer::view(at::IntArrayRef shape, const at::TensorOptions& options) {
  const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(options.dtype().itemsize());
  if (!memory_.defined() || memory_.numel() < bytes || memory_.device() != options.device()) {
    memory_ = at::Tensor();  // before the new one, as both may not fit
    memory_ = at::empty({bytes}, options.dtype(at::kByte));
  }
  return memory_.narrow(0, 0, bytes).view(c10::typeMetaToScalarType(options.dtype())).view(shape);
}

}  // namespace latentd::mesh
