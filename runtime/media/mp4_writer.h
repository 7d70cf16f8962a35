#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/unique_fd.h"
#include "runtime/media/av_image.h"
#include "runtime/media/av_muxer.h"
#include "runtime/media/frame_writer.h"

namespace latentd::media {

// See av_writer.h for the format. Owner, thread, states, failure: FrameWriter's.
class Mp4Writer final : public FrameWriter {
 public:
  static StatusOr<std::unique_ptr<FrameWriter>> open(const VideoSpec& spec, UniqueFd file);
  // Null if this libav has none that serves.
  static const AVCodec* findCodec();

  Status write(std::span<const std::byte> frame) override;
  Status finish() override { return muxer_.finish(); }

 private:
  Mp4Writer(const VideoSpec& spec, UniqueFd file, AvMuxer muxer, Scaler scaler, FramePtr rgb, FramePtr yuv);

  const VideoSpec spec_;
  const UniqueFd file_;  // the muxer writes to it by its number
  AvMuxer muxer_;
  Scaler scaler_;
  FramePtr rgb_;
  FramePtr yuv_;
  int64_t frames_ = 0;
};

}  // namespace latentd::media
