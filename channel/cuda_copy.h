#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// One run of bytes, the same way.
Status copyBytesAsync(std::byte* target, const std::byte* source, uint64_t bytes, cuda::StreamView stream);

// The bytes of a region that is one run on both sides.
struct ByteRun {
  uint64_t source = 0;  // from the region's buffer, as `target`
  uint64_t target = 0;
  uint64_t bytes = 0;
};
std::optional<ByteRun> asRun(const CopyRegion& region, uint64_t element_bytes);

// Into a slot: the source becomes a dense tensor at `slot`.
Status fillAsync(std::byte* slot, const TensorView& source, cuda::StreamView stream);

// Out of a slot: the regions of the dense tensor at `slot` go to where they belong in `target`.
Status readAsync(const TensorView& target, const std::byte* slot, std::span<const CopyRegion> regions,
                 cuda::StreamView stream);

}  // namespace latentd::channel
