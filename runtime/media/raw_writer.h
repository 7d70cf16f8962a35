#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/unique_fd.h"
#include "runtime/media/frame_writer.h"

// Formats that need no codec:
//   npy    NumPy's, version 1.0: uint8 or float32, shape (frames, height, width, 3), C order
//   y4m    YUV4MPEG2, C444, limited range; BT.601 below 720 lines, BT.709 from there on (color.h)
//   rgb24  the bare frames, row by row, no header
namespace latentd::media {

enum class RawFormat { kNpy, kY4m, kRgb24 };

// The bytes of the whole file, for a spool that must have room.
uint64_t rawFileBytes(RawFormat format, const VideoSpec& spec);

// Writes to `file` from its beginning; `name` is for messages. INVALID_ARGUMENT for float pixels in a format that has
// none. RESOURCE_EXHAUSTED, naming the file, when the disk is full.
StatusOr<std::unique_ptr<FrameWriter>> makeRawWriter(RawFormat format, const VideoSpec& spec, UniqueFd file,
                                                     std::string name);

}  // namespace latentd::media
