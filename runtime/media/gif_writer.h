#pragma once

#include <libimagequant.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/media/av_image.h"
#include "runtime/media/av_muxer.h"
#include "runtime/media/frame_writer.h"

namespace latentd::media {

// See av_writer.h for the format. Owner, thread, states, failure: FrameWriter's.
class GifWriter final : public FrameWriter {
 public:
  static StatusOr<std::unique_ptr<FrameWriter>> open(const VideoSpec& spec, UniqueFd file);

  Status write(std::span<const std::byte> frame) override;
  Status finish() override { return muxer_.finish(); }

 private:
  struct FreeQuantiser {
    void operator()(liq_attr* attributes) const { liq_attr_destroy(attributes); }
  };
  using Quantiser = std::unique_ptr<liq_attr, FreeQuantiser>;

  GifWriter(const VideoSpec& spec, UniqueFd file, AvMuxer muxer, Quantiser quantiser, FramePtr indexed);
  Status quantise(std::span<const std::byte> frame);

  const VideoSpec spec_;
  const UniqueFd file_;  // the muxer writes to it by its number
  AvMuxer muxer_;
  Quantiser quantiser_;
  std::vector<liq_color> rgba_;
  FramePtr indexed_;
  int64_t frames_ = 0;
};

}  // namespace latentd::media
