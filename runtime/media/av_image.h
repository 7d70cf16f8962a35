#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "runtime/media/av_handles.h"
#include "runtime/media/color.h"

namespace latentd::media {

// A frame with memory of its own, aligned and padded as libav likes it. RESOURCE_EXHAUSTED without memory.
StatusOr<FramePtr> makeFrame(AVPixelFormat format, int width, int height);

// Copies interleaved 8-bit RGB of width x height into a frame of kRgbFormat that may be larger: its last column and row
// are repeated into what is left.
inline constexpr AVPixelFormat kRgbFormat = AV_PIX_FMT_RGB24;
void loadRgb(std::span<const std::byte> rgb, uint32_t width, uint32_t height, AVFrame& frame);

// Converts pictures of one geometry into another. Owner: a writer. Thread: one.
class Scaler {
 public:
  static StatusOr<Scaler> create(const AVFrame& from, const AVFrame& to, ColorMatrix matrix);
  Status scale(const AVFrame& from, AVFrame& to);

 private:
  explicit Scaler(ScalerPtr context) : context_(std::move(context)) {}
  ScalerPtr context_;
};

}  // namespace latentd::media
