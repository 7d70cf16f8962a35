#include "channel/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "channel/limits.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

struct Dimension {
  int64_t extent = 1;
  int64_t target = 0;  // strides
  int64_t source = 0;
};

struct Box {
  std::array<Dimension, kDimensionsMax> dimensions;
  size_t count = 0;
};

// Writes stay sequential when the target's longest stride is outermost; dense neighbours become one dimension.
Box simplify(std::span<const int64_t> target_strides, std::span<const int64_t> source_strides,
             std::span<const int64_t> extents) {
  Box sorted;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] != 1) sorted.dimensions[sorted.count++] = {extents[d], target_strides[d], source_strides[d]};
  }
  std::stable_sort(sorted.dimensions.begin(), sorted.dimensions.begin() + sorted.count,
                   [](const Dimension& a, const Dimension& b) { return a.target > b.target; });
  Box joined;
  for (size_t d = 0; d < sorted.count; ++d) {
    const Dimension& inner = sorted.dimensions[d];
    if (joined.count > 0) {
      Dimension& outer = joined.dimensions[joined.count - 1];
      if (outer.target == inner.extent * inner.target && outer.source == inner.extent * inner.source) {
        outer = {outer.extent * inner.extent, inner.target, inner.source};
        continue;
      }
    }
    joined.dimensions[joined.count++] = inner;
  }
  return joined;
}

template <class Element>
void copyRow(std::byte* target, int64_t target_stride, const std::byte* source, int64_t source_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(target + i * target_stride * sizeof(Element), source + i * source_stride * sizeof(Element),
                sizeof(Element));
  }
}

void copyInnermost(std::byte* target, const std::byte* source, const Dimension& inner, size_t element_bytes) {
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

void copyBox(std::byte* target, const std::byte* source, const Dimension* dimensions, size_t count,
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
  LATENTD_CHECK(extents.size() <= kDimensionsMax && target_strides.size() == extents.size() &&
                    source_strides.size() == extents.size(),
                "a box has one stride for each dimension and side");
  if (std::find(extents.begin(), extents.end(), 0) != extents.end()) return;
  const Box box = simplify(target_strides, source_strides, extents);
  if (box.count == 0) {
    std::memcpy(target, source, element_bytes);
    return;
  }
  copyBox(target, source, box.dimensions.data(), box.count, element_bytes);
}

}  // namespace latentd::channel
