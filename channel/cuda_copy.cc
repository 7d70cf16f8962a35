#include "channel/cuda_copy.h"

#include "channel/copy_box.h"
#include "runtime/cuda/cuda_status.h"

namespace latentd::channel {
namespace {

// Of cudaMemcpy2D (cudaDevAttrMaxPitch, the same on every device).
constexpr size_t kPitchMax = (size_t{1} << 31) - 1;

// A stack of equally spaced rows of bytes on both sides.
struct Plane {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  size_t width = 0;  // bytes of a row
  size_t height = 1;
  size_t target_pitch = 0;
  size_t source_pitch = 0;
};

Status copyPlane(const Plane& plane, cuda::StreamView stream) {
  if (plane.height == 1) {
    LATENTD_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(plane.target, plane.source, plane.width, cudaMemcpyDefault, stream.get()), "copying a tensor");
    return absl::OkStatus();
  }
  LATENTD_CUDA_RETURN_IF_ERROR(cudaMemcpy2DAsync(plane.target, plane.target_pitch, plane.source, plane.source_pitch,
                                                 plane.width, plane.height, cudaMemcpyDefault, stream.get()),
                               "copying a slice of a tensor");
  return absl::OkStatus();
}

// `dimensions` are those outside of `plane`, outermost first.
Status copyPlanes(Plane plane, std::span<const CopyDimension> dimensions, size_t element_bytes,
                  cuda::StreamView stream) {
  if (dimensions.empty()) return copyPlane(plane, stream);
  const CopyDimension& outer = dimensions.front();
  for (int64_t i = 0; i < outer.extent; ++i) {
    LATENTD_RETURN_IF_ERROR(copyPlanes(plane, dimensions.subspan(1), element_bytes, stream));
    plane.target += static_cast<size_t>(outer.target) * element_bytes;
    plane.source += static_cast<size_t>(outer.source) * element_bytes;
  }
  return absl::OkStatus();
}

}  // namespace

Status copyStridedAsync(std::byte* target, std::span<const int64_t> target_strides, const std::byte* source,
                        std::span<const int64_t> source_strides, std::span<const int64_t> extents, size_t element_bytes,
                        cuda::StreamView stream) {
  const CopyBox box = makeCopyBox(target_strides, source_strides, extents);
  if (box.empty) return absl::OkStatus();
  const cuda::DeviceGuard guard(stream.device());
  std::span<const CopyDimension> dimensions(box.dimensions.data(), box.count);
  Plane plane{target, source, element_bytes, 1, 0, 0};
  // A dense innermost dimension is a row; otherwise every element is a row of its own.
  if (!dimensions.empty() && dimensions.back().target == 1 && dimensions.back().source == 1) {
    plane.width *= static_cast<size_t>(dimensions.back().extent);
    dimensions = dimensions.first(dimensions.size() - 1);
  }
  const auto fits = [&](const CopyDimension& rows) {
    // A pitch must hold its row, which that of a broadcast or overlapping source does not, and has a bound.
    const auto is_pitch = [&](int64_t stride) {
      const size_t pitch = static_cast<size_t>(stride) * element_bytes;
      return pitch >= plane.width && pitch <= kPitchMax;
    };
    return is_pitch(rows.source) && is_pitch(rows.target);
  };
  if (!dimensions.empty() && fits(dimensions.back())) {
    plane.height = static_cast<size_t>(dimensions.back().extent);
    plane.target_pitch = static_cast<size_t>(dimensions.back().target) * element_bytes;
    plane.source_pitch = static_cast<size_t>(dimensions.back().source) * element_bytes;
    dimensions = dimensions.first(dimensions.size() - 1);
  }
  return copyPlanes(plane, dimensions, element_bytes, stream);
}

Status copyBytesAsync(std::byte* target, const std::byte* source, uint64_t bytes, cuda::StreamView stream) {
  const cuda::DeviceGuard guard(stream.device());
  return copyPlane({target, source, bytes}, stream);
}

std::optional<ByteRun> asRun(const CopyRegion& region, uint64_t element_bytes) {
  const CopyBox box = makeCopyBox(region.target_strides, region.source_strides, region.extents);
  if (box.empty || box.count > 1) return std::nullopt;
  uint64_t elements = 1;
  if (box.count == 1) {
    if (box.dimensions[0].target != 1 || box.dimensions[0].source != 1) return std::nullopt;
    elements = static_cast<uint64_t>(box.dimensions[0].extent);
  }
  return ByteRun{static_cast<uint64_t>(region.source_offset) * element_bytes,
                 static_cast<uint64_t>(region.target_offset) * element_bytes, elements * element_bytes};
}

Status fillAsync(std::byte* slot, const TensorView& source, cuda::StreamView stream) {
  return copyStridedAsync(slot, contiguousStrides(source.shape), static_cast<const std::byte*>(source.data),
                          source.strides, source.shape, byteSize(source.dtype), stream);
}

Status readAsync(const TensorView& target, const std::byte* slot, std::span<const CopyRegion> regions,
                 cuda::StreamView stream) {
  const auto element = static_cast<int64_t>(byteSize(target.dtype));
  for (const CopyRegion& region : regions) {
    LATENTD_RETURN_IF_ERROR(copyStridedAsync(static_cast<std::byte*>(target.data) + region.target_offset * element,
                                             region.target_strides, slot + region.source_offset * element,
                                             region.source_strides, region.extents, static_cast<size_t>(element),
                                             stream));
  }
  return absl::OkStatus();
}

}  // namespace latentd::channel
