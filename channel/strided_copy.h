#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace latentd::channel {

// Copies a box of elements between two host buffers. Strides in elements, not negative; `element_bytes` is 1, 2, 4 or
// 8. Dimensions that are dense on both sides are joined first, so that a dense box is one memcpy and a slice is one
// memcpy a row. The buffers must not overlap.
void copyStrided(std::byte* target, std::span<const int64_t> target_strides, const std::byte* source,
                 std::span<const int64_t> source_strides, std::span<const int64_t> extents, size_t element_bytes);

}  // namespace latentd::channel
