#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

// RGB frames from the process that computes them to the process that encodes them: a ring of whole frames in a sealed
// memfd, one writer, one reader, waiting on futexes.
//
//   supervisor            worker                      encoder
//   FrameRing::create
//     fd ---------------> FrameRingWriter::attach
//     fd ----------------------------------------->   FrameRingReader::attach
//                         reserve, fill, commit ... next, use, release ...
//                         finish                      next: no frame is left
//   abort ---------------> reserve fails              next fails
//
// Each side holds a lock on a byte of the file through a file description of its own. The kernel drops it with the
// process, so that the other side learns of a death within kLivenessPeriod, whoever watches or does not.
namespace latentd::media {

enum class PixelFormat : uint32_t {
  kRgb8 = 1,    // uint8, 3 interleaved channels
  kRgbF32 = 2,  // float32 in [0, 1], 3 interleaved channels
};

struct FrameGeometry {
  uint32_t width = 0;   // pixels
  uint32_t height = 0;  // pixels
  PixelFormat format = PixelFormat::kRgb8;
  uint32_t capacity = 0;  // frames that fit

  friend bool operator==(const FrameGeometry&, const FrameGeometry&) = default;
};

constexpr uint32_t kFrameSideMax = 16384;  // above every video format; keeps byte counts far from overflow
constexpr uint32_t kRingCapacityMax = 1024;
constexpr uint64_t kRingBytesMax = uint64_t{4} << 30;
// How often a blocked side looks whether its peer lives.
constexpr std::chrono::milliseconds kLivenessPeriod{200};

// Whose failure ended a ring. A side that finds the other one dead or at fault tells of that one's.
enum class RingParty : uint32_t { kNobody = 0, kOwner = 1, kWriter = 2, kReader = 3 };

// Bytes of one frame.
uint64_t frameBytes(const FrameGeometry& geometry);

namespace internal {
struct RingHeader;

// One mapping of a ring: the part that owner, writer and reader share. Thread: abort() from any.
class RingMapping {
 public:
  static StatusOr<RingMapping> create(const FrameGeometry& geometry);
  // Validates what the peer wrote and keeps its own copy of it.
  static StatusOr<RingMapping> of(ShmRegion region);

  const FrameGeometry& geometry() const { return geometry_; }
  uint64_t frameBytes() const { return frame_bytes_; }
  int fd() const { return region_.fd(); }
  RingHeader& header() const;
  std::byte* frame(uint32_t count) const;
  Status abort(const Status& reason, RingParty at_fault) const;
  // The reason if the ring was aborted.
  Status aborted() const;
  RingParty atFault() const;

 private:
  RingMapping(ShmRegion region, const FrameGeometry& geometry);

  ShmRegion region_;
  FrameGeometry geometry_;
  uint64_t frame_bytes_;
};

// A side's proof of life.
class SideLock {
 public:
  // ALREADY_EXISTS if another process or object is that side.
  static StatusOr<SideLock> acquire(int ring_fd, uint32_t side);
  bool heldByOther(uint32_t side) const;

 private:
  explicit SideLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};
}  // namespace internal

// The ring as its creator sees it. Owner: whoever runs the job's output. Thread: any for abort(), one for the rest.
// States: open -> aborted. Failure: create() returns RESOURCE_EXHAUSTED when memory does not suffice.
class FrameRing {
 public:
  static StatusOr<FrameRing> create(const FrameGeometry& geometry);

  int fd() const { return mapping_->fd(); }
  const FrameGeometry& geometry() const { return mapping_->geometry(); }
  // Both sides fail with `reason` from now on; the first abort wins.
  void abort(const Status& reason) { mapping_->abort(reason, RingParty::kOwner).IgnoreError(); }
  Status aborted() const { return mapping_->aborted(); }
  RingParty atFault() const { return mapping_->atFault(); }
  // So far; what the peers wrote, for display.
  uint32_t framesCommitted() const;
  // The writer said that no frame follows.
  bool finished() const;

 private:
  friend class FrameRingReader;
  explicit FrameRing(internal::RingMapping mapping);
  std::shared_ptr<internal::RingMapping> mapping_;  // with readers of this process
};

// The filling side. Owner: the worker, for one job. Thread: one; abort() from any.
// States: open -> finished | aborted. Failure: sticky; a writer destroyed before finish() aborts the ring with
// CANCELLED.
class FrameRingWriter {
 public:
  static StatusOr<FrameRingWriter> attach(ShmRegion memory);
  FrameRingWriter(FrameRingWriter&&) noexcept;
  FrameRingWriter& operator=(FrameRingWriter&&) = delete;
  ~FrameRingWriter();

  const FrameGeometry& geometry() const { return mapping_->geometry(); }
  // Memory of the next frame; blocks while the ring is full. DEADLINE_EXCEEDED: the reader took nothing until then;
  // UNAVAILABLE: the reader's process died; else the reason of an abort.
  StatusOr<std::span<std::byte>> reserve(Clock::TimePoint deadline);
  // Hands over the frame of the last reserve().
  void commit();
  // No frame follows. Not for a ring with a reserved, uncommitted frame.
  Status finish();
  void abort(const Status& reason) { mapping_->abort(reason, RingParty::kWriter).IgnoreError(); }
  uint32_t framesCommitted() const { return produced_; }

 private:
  FrameRingWriter(internal::RingMapping mapping, internal::SideLock lock);
  StatusOr<bool> full() const;

  // Indirect, so that abort() of another thread survives a move of this object before sharing begins.
  std::unique_ptr<internal::RingMapping> mapping_;
  internal::SideLock lock_;
  uint32_t produced_ = 0;
  bool reserved_ = false;
  bool finished_ = false;
};

// The emptying side. Owner: the encoder, or the supervisor's raw writer. Thread: one; abort() from any.
// States: open -> ended | aborted. Failure: sticky; a reader destroyed before the end aborts the ring with CANCELLED.
class FrameRingReader {
 public:
  static StatusOr<FrameRingReader> attach(ShmRegion memory);
  // In the process of the ring's creator: shares its mapping, since unmapping costs more than a small frame.
  static StatusOr<FrameRingReader> attach(const FrameRing& ring);
  FrameRingReader(FrameRingReader&&) noexcept;
  FrameRingReader& operator=(FrameRingReader&&) = delete;
  ~FrameRingReader();

  const FrameGeometry& geometry() const { return mapping_->geometry(); }
  // The next frame, in place, valid until release(); nothing once the writer finished and all were read. Blocks while
  // the ring is empty. Errors as FrameRingWriter::reserve(); DATA_LOSS: the counters make no sense.
  StatusOr<std::optional<std::span<const std::byte>>> next(Clock::TimePoint deadline);
  // Gives the frame of the last next() back.
  void release();
  void abort(const Status& reason) { mapping_->abort(reason, RingParty::kReader).IgnoreError(); }
  // The same, of what is the writer's doing.
  void blameWriter(const Status& reason) { mapping_->abort(reason, RingParty::kWriter).IgnoreError(); }
  uint32_t framesRead() const { return consumed_; }

 private:
  FrameRingReader(std::shared_ptr<internal::RingMapping> mapping, internal::SideLock lock);
  static StatusOr<FrameRingReader> attach(std::shared_ptr<internal::RingMapping> mapping);
  enum class Content { kFrame, kNothingYet, kEnd };
  StatusOr<Content> content() const;

  std::shared_ptr<internal::RingMapping> mapping_;  // shared with this process's FrameRing, if that made it
  internal::SideLock lock_;
  uint32_t consumed_ = 0;
  bool holding_ = false;
  bool ended_ = false;
};

}  // namespace latentd::media
