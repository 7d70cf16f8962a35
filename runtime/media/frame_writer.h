#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/status.h"
#include "runtime/media/frame_rate.h"
#include "runtime/media/frame_ring.h"

namespace latentd::media {

// What a writer is told of the video before its first frame.
struct VideoSpec {
  uint32_t width = 0;   // pixels
  uint32_t height = 0;  // pixels
  PixelFormat format = PixelFormat::kRgb8;
  FrameRate rate;
  uint32_t frames = 0;  // expected; the true number is what write() gets
};

// Turns frames into one file, in order. Owner: the thread or process that empties the ring. Thread: one.
// States: open -> finished | failed. Failure: sticky by convention: after an error only destruction is allowed, and
// the file is no valid one.
class FrameWriter {
 public:
  virtual ~FrameWriter() = default;
  // One frame of the spec's geometry, rows from the top, RGB interleaved.
  virtual Status write(std::span<const std::byte> frame) = 0;
  // All frames were written; the file is complete once this returned OK.
  virtual Status finish() = 0;
};

// Empties the ring into the writer and finishes it; the number of frames. FAILED_PRECONDITION if there was none.
// A failure of the writer aborts the ring with it, so that the filling side stops too.
StatusOr<uint32_t> pumpFrames(FrameRingReader& reader, FrameWriter& writer);

}  // namespace latentd::media
