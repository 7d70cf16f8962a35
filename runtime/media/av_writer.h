#pragma once

#include <memory>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/media/frame_writer.h"

// Formats that need a codec; latent-encoder alone links this.
//   mp4  H.264 by libx264, MPEG-4 part 2 where libav has no libx264; 4:2:0, limited range, BT.601 below 720 lines and
//        BT.709 from there on, tagged; index in front. 4:2:0 has even sides: an odd side is extended by repeating its
//        last column or row.
//   gif  a palette of 256 colours for each frame, dithered; endless; time in hundredths of a second, so that rates
//        above 50 are shown slower by most viewers.
//   png  a contact sheet: all frames in reading order in a grid that is about square, scaled down to fit 8192 pixels.
namespace latentd::media {

// Writes to `file` (read and write, empty). INVALID_ARGUMENT for a format that is none of these, or float pixels.
StatusOr<std::unique_ptr<FrameWriter>> makeAvWriter(std::string_view format, const VideoSpec& spec, UniqueFd file);

// OK if this libav can write all three; UNAVAILABLE with what is missing.
Status checkAvFormats();

}  // namespace latentd::media
