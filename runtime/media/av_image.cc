#include "runtime/media/av_image.h"

#include <algorithm>
#include <cstring>

#include "runtime/media/av_error.h"

namespace latentd::media {

StatusOr<FramePtr> makeFrame(AVPixelFormat format, int width, int height) {
  FramePtr frame(av_frame_alloc());
  if (frame == nullptr) return absl::ResourceExhaustedError("no memory for a frame");
  frame->format = format;
  frame->width = width;
  frame->height = height;
  const int allocated = av_frame_get_buffer(frame.get(), 0);
  if (allocated < 0) {
    return avStatus(allocated, "frame of " + std::to_string(width) + "x" + std::to_string(height));
  }
  return frame;
}

void loadRgb(std::span<const std::byte> rgb, uint32_t width, uint32_t height, AVFrame& frame) {
  const size_t row_bytes = size_t{width} * 3;
  for (int y = 0; y < frame.height; ++y) {
    const uint32_t source = std::min(static_cast<uint32_t>(y), height - 1);
    uint8_t* const row = frame.data[0] + static_cast<ptrdiff_t>(y) * frame.linesize[0];
    std::memcpy(row, rgb.data() + source * row_bytes, row_bytes);
    for (int x = static_cast<int>(width); x < frame.width; ++x) {
      std::memcpy(row + 3 * x, row + row_bytes - 3, 3);
    }
  }
}

StatusOr<Scaler> Scaler::create(const AVFrame& from, const AVFrame& to, ColorMatrix matrix) {
  const int flags = SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP;
  ScalerPtr context(sws_getContext(from.width, from.height, static_cast<AVPixelFormat>(from.format), to.width,
                                   to.height, static_cast<AVPixelFormat>(to.format), flags, nullptr, nullptr, nullptr));
  if (context == nullptr) return absl::InternalError("libswscale cannot convert these pictures");
  const int* const coefficients = sws_getCoefficients(matrix == ColorMatrix::kBt709 ? SWS_CS_ITU709 : SWS_CS_ITU601);
  constexpr int kFullRange = 1;
  constexpr int kLimitedRange = 0;
  constexpr int kUnity = 1 << 16;  // contrast and saturation are 16.16 fixed point
  // Not for RGB to RGB, where there is nothing to set.
  sws_setColorspaceDetails(context.get(), coefficients, kFullRange, coefficients, kLimitedRange, 0, kUnity, kUnity);
  return Scaler(std::move(context));
}

Status Scaler::scale(const AVFrame& from, AVFrame& to) {
  const int rows = sws_scale(context_.get(), from.data, from.linesize, 0, from.height, to.data, to.linesize);
  return rows == to.height ? absl::OkStatus() : avStatus(rows, "convert a frame");
}

}  // namespace latentd::media
