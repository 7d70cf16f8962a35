#include "channel/strided_copy.h"

#include <cstring>

#include "channel/copy_box.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

template <class Element>
void copyRow(std::byte* target, int64_t target_stride, const std::byte* source, int64_t source_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(target + i * target_stride * sizeof(Element), source + i * source_stride * sizeof(Element),
                sizeof(Element));
  }
}

void copyInnermost(std::byte* target, const std::byte* source, const CopyDimension& inner, size_t element_bytes) {
  if (inner.target == 1 && inner.source == 1) {
    std::memcpy(target, source, static_cast<size_t>(inner.extent) * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1:
      return copyRow<uint8_t>(target, inner.target, source, inner.source, inner.extent);
    case 2:
      return copyRow<uint16_t>(target, inner.target, source, inner.source, inner.extent);
    case 4:
      return copyRow<uint32_t>(target, inner.target, source, inner.source, inner.extent);
    case 8:
      return copyRow<uint64_t>(target, inner.target, source, inner.source, inner.extent);
    default:
      LATENTD_CHECK(false, "elements have 1, 2, 4 or 8 bytes");
  }
}

void copyBox(std::byte* target, const std::byte* source, const CopyDimension* dimensions, size_t count,
             size_t element_bytes) {
  if (count == 1) return copyInnermost(target, source, dimensions[0], element_bytes);
  const auto bytes = static_cast<int64_t>(element_bytes);
  for (int64_t i = 0; i < dimensions[0].extent; ++i) {
    copyBox(target + i * dimensions[0].target * bytes, source + i * dimensions[0].source * bytes, dimensions + 1,
            count - 1, element_bytes);
  }
}

}  // namespace

void copyStrided(std::byte* target, std::span<const int64_t> target_strides, const std::byte* source,
                 std::span<const int64_t> source_strides, std::span<const int64_t> extents, size_t element_bytes) {
  const CopyBox box = makeCopyBox(target_strides, source_strides, extents);
  if (box.empty) return;
  if (box.count == 0) {
    std::memcpy(target, source, element_bytes);
    return;
  }
  copyBox(target, source, box.dimensions.data(), box.count, element_bytes);
}

}  // namespace latentd::channel
