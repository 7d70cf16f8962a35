#include "channel/tensor_view.h"

namespace latentd::channel {

std::vector<int64_t> contiguousStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return strides;
}

bool isContiguous(const TensorView& view) {
  int64_t stride = 1;
  for (size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] == 0) return true;
    // The stride of a dimension of one element is never used.
    if (view.shape[i] != 1 && view.strides[i] != stride) return false;
    stride *= view.shape[i];
  }
  return true;
}

bool sameStorage(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.device == b.device && a.shape == b.shape &&
         a.strides == b.strides && a.whole == b.whole && a.tokens == b.tokens;
}

int64_t elementCount(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape)
    count *= extent;
  return count;
}

uint64_t byteCount(const TensorView& view) {
  return static_cast<uint64_t>(elementCount(view.shape)) * byteSize(view.dtype);
}

}  // namespace latentd::channel
