#include "runtime/worker/ring_frame_sink.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

namespace latentd::worker {

using media::PixelFormat;

void quantise(const float* values, uint8_t* bytes, size_t count) {
  // Adding 1.5 * 2^23 leaves no bits for a fraction, so that the addition itself rounds, half to even, and the integer
  // stands in the low bits: a loop without a call, which the compiler makes vectors of.
  constexpr float kRounder = 12582912.0F;
  for (size_t i = 0; i < count; ++i) {
    const float above = values[i] > 0.0F ? values[i] : 0.0F;  // NaN compares false
    const float clamped = above < 1.0F ? above : 1.0F;
    bytes[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(clamped * 255.0F + kRounder));
  }
}

RingFrameSink::RingFrameSink(DescriptorInbox& inbox, uint64_t ring_id, Options options)
    : inbox_(inbox), ring_id_(ring_id), options_(std::move(options)) {}

Status RingFrameSink::attach(Clock::TimePoint deadline) {
  if (writer_) return absl::OkStatus();
  StatusOr<ShmRegion> ring = inbox_.take(ring_id_, deadline, options_.cancel);
  if (!ring.ok()) return annotate(ring.status(), "the job's frame ring");
  LATENTD_ASSIGN_OR_RETURN(media::FrameRingWriter writer, media::FrameRingWriter::attach(*std::move(ring)));
  writer_.emplace(std::move(writer));
  on_cancel_.emplace(options_.cancel, [this] { writer_->abort(absl::CancelledError("the job was cancelled")); });
  return absl::OkStatus();
}

Status RingFrameSink::attachIfHere() {
  const Status attached = attach(std::chrono::steady_clock::now());
  if (!absl::IsDeadlineExceeded(attached)) failure_ = attached;
  return failure_;
}

void RingFrameSink::abort(const Status& reason) {
  if (writer_) {
    writer_->abort(reason);
  } else {
    inbox_.drop(ring_id_);
  }
}

Status RingFrameSink::checkShape(const at::Tensor& frames) const {
  const media::FrameGeometry& ring = writer_->geometry();
  const bool fits = frames.dim() == 4 && frames.size(1) == ring.height && frames.size(2) == ring.width &&
                    frames.size(3) == 3 && frames.scalar_type() == at::kFloat && frames.is_cpu() &&
                    frames.is_contiguous();
  if (fits) return absl::OkStatus();
  std::string shape;
  for (const int64_t extent : frames.sizes())
    shape += (shape.empty() ? "" : "x") + std::to_string(extent);
  return absl::InternalError("the stage wrote frames of " + std::string(c10::toString(frames.scalar_type())) + " " +
                             shape + ", the job's ring takes contiguous Float Tx" + std::to_string(ring.height) + "x" +
                             std::to_string(ring.width) + "x3 on the CPU");
}

Status RingFrameSink::writeAll(const at::Tensor& frames) {
  LATENTD_RETURN_IF_ERROR(attach(std::chrono::steady_clock::now() + options_.wait_max));
  LATENTD_RETURN_IF_ERROR(checkShape(frames));
  const auto values_of_frame = static_cast<size_t>(frames.size(1) * frames.size(2) * 3);
  const float* values = frames.const_data_ptr<float>();
  for (int64_t index = 0; index < frames.size(0); ++index, values += values_of_frame) {
    LATENTD_ASSIGN_OR_RETURN(const std::span<std::byte> frame,
                             writer_->reserve(std::chrono::steady_clock::now() + options_.wait_max));
    if (writer_->geometry().format == PixelFormat::kRgbF32) {
      std::memcpy(frame.data(), values, frame.size());
    } else {
      quantise(values, reinterpret_cast<uint8_t*>(frame.data()), values_of_frame);
    }
    writer_->commit();
    options_.on_frame();
  }
  return absl::OkStatus();
}

Status RingFrameSink::write(const at::Tensor& frames) {
  if (failure_.ok()) failure_ = writeAll(frames);
  return options_.deferred ? absl::OkStatus() : failure_;
}

Status RingFrameSink::finish() {
  if (failure_.ok()) failure_ = attach(std::chrono::steady_clock::now() + options_.wait_max);
  if (failure_.ok()) failure_ = writer_->finish();
  return failure_;
}

}  // namespace latentd::worker
