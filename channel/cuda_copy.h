#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "runtime/cuda/stream.h"

namespace latentd::channel {

// copyStrided (channel/strided_copy.h) in stream order, by copy engines alone: one call for a dense box, a two- or
// three-dimensional one for slices, one call a plane beyond that. Either side may be host memory (pinned, or the copy
// is synchronous), memory of this device, or of a peer that it reaches. Asynchronous: submitted when it returns.
Status copyStridedAsync(std::byte* target, std::span<const int64_t> target_strides, const std::byte* source,
                        std::span<const int64_t> source_strides, std::span<const int64_t> extents, size_t element_bytes,
                        cuda::StreamView stream);

}  // namespace latentd::channel
