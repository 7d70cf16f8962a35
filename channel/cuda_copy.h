#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "channel/tensor_view.h"
#include "channel/transfer_plan.h"
#include "runtime/base/status.h"
#include "runtime/cuda/stream.h"

namespace latentd::channel {

// copyStrided (channel/strided_copy.h) in stream order, by copy engines alone: one call for a dense box, a two- or
// three-dimensional one for slices, one call a plane beyond that. Either side may be host memory (pinned, or the copy
// is synchronous), memory of this device, or of a peer that it reaches. Asynchronous: submitted when it returns.
Status copyStridedAsync(std::byte* target, std::span<const int64_t> target_strides, const std::byte* source,
                        std::span<const int64_t> source_strides, std::span<const int64_t> extents, size_t element_bytes,
                        cuda::StreamView stream);

// Into a slot: the source becomes a dense tensor at `slot`.
Status fillAsync(std::byte* slot, const TensorView& source, cuda::StreamView stream);

// Out of a slot: the regions of the dense tensor at `slot` go to where they belong in `target`.
Status readAsync(const TensorView& target, const std::byte* slot, std::span<const CopyRegion> regions,
                 cuda::StreamView stream);

}  // namespace latentd::channel
