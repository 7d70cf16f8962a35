#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>

#include "runtime/base/clock.h"
#include "runtime/media/frame_ring.h"
#include "stages/stage.h"

namespace latentd::worker {

// Frames of a stage into a job's ring: float32 as they are, or uint8 rounded half to even, as the reference does.
// Owner: one running command. Thread: the executor's; a requested stop wakes a write that waits for the reader.
// States: open -> finished | failed (sticky). Failure: the first error is kept; see Options::deferred.
class RingFrameSink final : public stages::FrameSink {
 public:
  struct Options {
    Clock::Duration reader_wait_max{};  // longest wait for the reader to take a frame
    std::stop_token cancel;
    // In a group of several ranks one rank must not leave a run alone: write() then returns OK after a failure and
    // drops the frames, and the lead ends the run at the next step by failure().
    bool deferred = false;
    std::function<void()> on_frame;  // after each one
  };

  RingFrameSink(media::FrameRingWriter writer, Options options);

  Status write(const at::Tensor& frames) override;
  // No frame follows: the reader may end.
  Status finish();
  // The reader learns why.
  void abort(const Status& reason) { writer_.abort(reason); }
  const Status& failure() const { return failure_; }
  uint32_t framesWritten() const { return writer_.framesCommitted(); }

 private:
  Status checkShape(const at::Tensor& frames) const;
  Status writeAll(const at::Tensor& frames);

  const Options options_;
  media::FrameRingWriter writer_;
  Status failure_;
  std::stop_callback<std::function<void()>> on_cancel_;  // last: it uses writer_
};

// For the ranks of a group that have no ring: rank 0 sends the frames that all of them computed.
class DroppedFrames final : public stages::FrameSink {
 public:
  Status write(const at::Tensor&) override { return absl::OkStatus(); }
};

// [0, 1] to 0..255, half to even; below 0 and NaN become 0, above 1 becomes 255.
void quantise(const float* values, uint8_t* bytes, size_t count);

}  // namespace latentd::worker
