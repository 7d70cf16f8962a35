#include "runtime/media/frame_writer.h"

namespace latentd::media {
namespace {

// A frame may be as long in coming as a job may last, whose deadline is the supervisor's: it aborts the ring, and a
// death of either side ends the wait. This is the longest deadline that a topology allows.
constexpr std::chrono::hours kFrameWaitMax{7 * 24};

}  // namespace

StatusOr<uint32_t> pumpFrames(FrameRingReader& reader, FrameWriter& writer) {
  const SteadyClock clock;
  while (true) {
    LATENTD_ASSIGN_OR_RETURN(const std::optional<std::span<const std::byte>> frame,
                             reader.next(clock.now() + kFrameWaitMax));
    if (!frame) break;
    const Status written = writer.write(*frame);
    reader.release();
    if (!written.ok()) {
      reader.abort(written);
      return written;
    }
  }
  if (reader.framesRead() == 0) {
    const Status empty = absl::FailedPreconditionError("the job ended without a frame");
    reader.blameWriter(empty);
    return empty;
  }
  LATENTD_RETURN_IF_ERROR(writer.finish());
  return reader.framesRead();
}

}  // namespace latentd::media
