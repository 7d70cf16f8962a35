#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>

#include "runtime/base/clock.h"
#include "runtime/media/frame_ring.h"
#include "runtime/worker/descriptor_inbox.h"
#include "stages/stage.h"

namespace latentd::worker {

// Frames of a stage into a job's ring: float32 as they are, or uint8 rounded half to even, as the reference does. The
// ring is made while the stage begins, and needed with the first frame.
// Owner: one running command. Thread: the executor's; a requested stop wakes a write that waits, for the ring or for
// its reader. States: waiting -> attached -> finished; failed (sticky) from each. Failure: the first error is kept; see
// Options::deferred.
class RingFrameSink final : public stages::FrameSink {
 public:
  struct Options {
    Clock::Duration wait_max{};  // longest wait for the ring, and for its reader to take a frame
    std::stop_token cancel;
    // In a group of several ranks one rank must not leave a run alone: write() then returns OK after a failure and
    // drops the frames, and the lead ends the run at the next step by failure().
    bool deferred = false;
    std::function<void()> on_frame;  // after each one
  };

  // The inbox, to which the ring comes under this id, outlives it.
  RingFrameSink(DescriptorInbox& inbox, uint64_t ring_id, Options options);

  // Saves the first frame that time. OK also where the ring is not here yet.
  Status attachIfHere();
  Status write(const at::Tensor& frames) override;
  // No frame follows: the reader may end.
  Status finish();
  // The reader learns why; of a ring that is not here yet it will not have had a writer.
  void abort(const Status& reason);
  const Status& failure() const { return failure_; }
  uint32_t framesWritten() const { return writer_ ? writer_->framesCommitted() : 0; }

 private:
  Status attach(Clock::TimePoint deadline);
  Status checkShape(const at::Tensor& frames) const;
  Status writeAll(const at::Tensor& frames);

  DescriptorInbox& inbox_;
  const uint64_t ring_id_;
  const Options options_;
  std::optional<media::FrameRingWriter> writer_;  // once attached
  Status failure_;
  std::optional<std::stop_callback<std::function<void()>>> on_cancel_;  // last: it uses writer_
};

// For the ranks of a group that have no ring: rank 0 sends the frames that all of them computed.
class DroppedFrames final : public stages::FrameSink {
 public:
  Status write(const at::Tensor&) override { return absl::OkStatus(); }
};

// [0, 1] to 0..255, half to even; below 0 and NaN become 0, above 1 becomes 255.
void quantise(const float* values, uint8_t* bytes, size_t count);

}  // namespace latentd::worker
