#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/base/unique_fd.h"
#include "runtime/media/av_image.h"
#include "runtime/media/frame_writer.h"

namespace latentd::media {

// Where frames stand on a contact sheet. A pure value.
struct SheetLayout {
  uint32_t columns = 1;
  uint32_t rows = 1;
  uint32_t tile_width = 1;   // pixels
  uint32_t tile_height = 1;  // pixels
};
// About square as a whole, no side above 8192 pixels where tiles of one pixel allow it.
SheetLayout layoutSheet(uint32_t width, uint32_t height, uint32_t frames);

// See av_writer.h for the format. Holds the sheet until finish(). Rows that get no frame are cut off.
// Owner, thread, states, failure: FrameWriter's; more frames than the spec says are FAILED_PRECONDITION.
class SheetWriter final : public FrameWriter {
 public:
  static StatusOr<std::unique_ptr<FrameWriter>> open(const VideoSpec& spec, UniqueFd file);

  Status write(std::span<const std::byte> frame) override;
  Status finish() override;

 private:
  SheetWriter(const VideoSpec& spec, const SheetLayout& layout, UniqueFd file, Scaler scaler, FramePtr rgb,
              FramePtr tile, FramePtr sheet);

  const VideoSpec spec_;
  const SheetLayout layout_;
  const UniqueFd file_;
  Scaler scaler_;
  FramePtr rgb_;
  FramePtr tile_;
  FramePtr sheet_;
  uint32_t frames_ = 0;
};

}  // namespace latentd::media
