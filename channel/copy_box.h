#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "channel/limits.h"

namespace latentd::channel {

// One dimension of a box to copy. Strides in elements.
struct CopyDimension {
  int64_t extent = 1;
  int64_t target = 0;
  int64_t source = 0;
};

// A box of elements to copy between two buffers, in as few dimensions as describe it: outermost first by the target's
// strides, so that writes stay sequential, and dimensions that are dense on both sides joined. No dimension has extent
// 1; a single element has no dimension. A value type.
struct CopyBox {
  std::array<CopyDimension, kDimensionsMax> dimensions;
  size_t count = 0;
  bool empty = false;  // some extent is 0
};

// Strides are not negative; the spans are equally long, at most kDimensionsMax.
CopyBox makeCopyBox(std::span<const int64_t> target_strides, std::span<const int64_t> source_strides,
                    std::span<const int64_t> extents);

}  // namespace latentd::channel
