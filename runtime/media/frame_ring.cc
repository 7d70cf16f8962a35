#include "runtime/media/frame_ring.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/futex.h"

namespace latentd::media {
namespace internal {

constexpr uint64_t kMagic = 0x3272665f6c746e64;  // "dntl_fr2"
constexpr size_t kHeaderBytes = 4096;            // a page: frames start page aligned
constexpr size_t kFrameAlignment = 64;           // a cache line, for vector stores
constexpr size_t kReasonBytesMax = 1024;
constexpr uint32_t kWriterSide = 0;
constexpr uint32_t kReaderSide = 1;

enum AbortState : uint32_t {
  kNotAborted = 0,
  kAbortClaimed = 1,    // the reason is being written
  kAbortPublished = 2,  // the reason can be read
};

// Frame counters are modulo 2^32; only their difference has meaning.
struct RingHeader {
  uint64_t magic;
  FrameGeometry geometry;
  std::atomic<uint32_t> attached[2];  // by side: the side took its lock once
  std::atomic<uint32_t> finished;
  std::atomic<uint32_t> abort_state;
  std::atomic<int32_t> abort_code;
  std::atomic<uint32_t> abort_party;  // a RingParty
  std::atomic<uint32_t> abort_text_bytes;
  char abort_text[kReasonBytesMax];
  // Written by one side each, and apart, so that neither invalidates the other's line.
  alignas(64) std::atomic<uint32_t> produced;
  std::atomic<uint32_t> reader_wake;  // the reader sleeps on it
  alignas(64) std::atomic<uint32_t> consumed;
  std::atomic<uint32_t> writer_wake;  // the writer sleeps on it
};
static_assert(sizeof(RingHeader) <= kHeaderBytes);

namespace {

uint64_t frameStride(const FrameGeometry& geometry) {
  return (media::frameBytes(geometry) + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

std::string describe(const FrameGeometry& geometry) {
  return std::to_string(geometry.width) + "x" + std::to_string(geometry.height) + ", format " +
         std::to_string(static_cast<uint32_t>(geometry.format)) + ", " + std::to_string(geometry.capacity) + " frames";
}

Status validate(const FrameGeometry& geometry) {
  const auto side_ok = [](uint32_t side) { return side >= 1 && side <= kFrameSideMax; };
  const bool format_ok = geometry.format == PixelFormat::kRgb8 || geometry.format == PixelFormat::kRgbF32;
  const bool capacity_ok = geometry.capacity >= 1 && geometry.capacity <= kRingCapacityMax;
  if (!side_ok(geometry.width) || !side_ok(geometry.height) || !format_ok || !capacity_ok ||
      frameStride(geometry) * geometry.capacity > kRingBytesMax) {
    return absl::InvalidArgumentError("frame ring of " + describe(geometry) + ": sides must be 1.." +
                                      std::to_string(kFrameSideMax) + ", the format 1 or 2, the capacity 1.." +
                                      std::to_string(kRingCapacityMax) + ", the whole at most " +
                                      std::to_string(kRingBytesMax) + " bytes");
  }
  return absl::OkStatus();
}

void wakeBoth(RingHeader& header) {
  for (std::atomic<uint32_t>* word : {&header.reader_wake, &header.writer_wake}) {
    word->fetch_add(1, std::memory_order_release);
    futexWakeAll(*word);
  }
}

struct flock lockOf(uint32_t side, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = side;
  lock.l_len = 1;
  return lock;
}

}  // namespace

RingMapping::RingMapping(ShmRegion region, const FrameGeometry& geometry)
    : region_(std::move(region)), geometry_(geometry), frame_bytes_(media::frameBytes(geometry)) {}

StatusOr<RingMapping> RingMapping::create(const FrameGeometry& geometry) {
  LATENTD_RETURN_IF_ERROR(validate(geometry));
  const size_t bytes = kHeaderBytes + frameStride(geometry) * geometry.capacity;
  LATENTD_ASSIGN_OR_RETURN(ShmRegion region, ShmRegion::create("latentd-frames", bytes));
  auto* header = new (region.data()) RingHeader{};
  header->geometry = geometry;
  header->magic = kMagic;
  return RingMapping(std::move(region), geometry);
}

StatusOr<RingMapping> RingMapping::of(ShmRegion region) {
  if (region.bytes() < kHeaderBytes) return absl::InvalidArgumentError("shared memory is too small for a frame ring");
  const auto* header = reinterpret_cast<const RingHeader*>(region.data());
  if (header->magic != kMagic) return absl::InvalidArgumentError("shared memory is no frame ring of this version");
  const FrameGeometry geometry = header->geometry;
  LATENTD_RETURN_IF_ERROR(validate(geometry));
  const uint64_t needed = kHeaderBytes + frameStride(geometry) * geometry.capacity;
  if (region.bytes() < needed) {
    return absl::InvalidArgumentError("frame ring of " + describe(geometry) + " needs " + std::to_string(needed) +
                                      " bytes, its memory has " + std::to_string(region.bytes()));
  }
  return RingMapping(std::move(region), geometry);
}

RingHeader& RingMapping::header() const { return *reinterpret_cast<RingHeader*>(region_.data()); }

std::byte* RingMapping::frame(uint32_t count) const {
  // The capacity need not divide 2^32: a ring that wraps the counter would skip. 2^32 frames are 4.5 years at 30 a
  // second, and a job has frames_max.
  return region_.data() + kHeaderBytes + frameStride(geometry_) * (count % geometry_.capacity);
}

Status RingMapping::abort(const Status& reason, RingParty at_fault) const {
  LATENTD_CHECK(!reason.ok(), "a ring is aborted with an error");
  RingHeader& shared = header();
  uint32_t expected = kNotAborted;
  if (!shared.abort_state.compare_exchange_strong(expected, kAbortClaimed, std::memory_order_acq_rel)) {
    return aborted();
  }
  const std::string text = messageOf(reason);
  const size_t bytes = std::min(text.size(), kReasonBytesMax);
  std::memcpy(shared.abort_text, text.data(), bytes);
  shared.abort_text_bytes.store(static_cast<uint32_t>(bytes), std::memory_order_relaxed);
  shared.abort_code.store(static_cast<int32_t>(reason.code()), std::memory_order_relaxed);
  shared.abort_party.store(static_cast<uint32_t>(at_fault), std::memory_order_relaxed);
  shared.abort_state.store(kAbortPublished, std::memory_order_release);
  wakeBoth(shared);
  return reason;
}

Status RingMapping::aborted() const {
  const RingHeader& shared = header();
  const uint32_t state = shared.abort_state.load(std::memory_order_acquire);
  if (state == kNotAborted) return absl::OkStatus();
  // Whoever claimed may have died before it wrote why.
  if (state != kAbortPublished) return absl::UnavailableError("frame ring was aborted");
  const size_t bytes = std::min<size_t>(shared.abort_text_bytes.load(std::memory_order_relaxed), kReasonBytesMax);
  const int32_t code = shared.abort_code.load(std::memory_order_relaxed);
  const bool known = code > 0 && code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return makeStatus(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                    std::string_view(shared.abort_text, bytes));
}

RingParty RingMapping::atFault() const {
  const RingHeader& shared = header();
  if (shared.abort_state.load(std::memory_order_acquire) != kAbortPublished) return RingParty::kNobody;
  const uint32_t party = shared.abort_party.load(std::memory_order_relaxed);
  return party <= static_cast<uint32_t>(RingParty::kReader) ? static_cast<RingParty>(party) : RingParty::kNobody;
}

StatusOr<SideLock> SideLock::acquire(int ring_fd, uint32_t side) {
  // Locks belong to a file description; opening the file anew gives one that no other process shares.
  const std::string path = "/proc/self/fd/" + std::to_string(ring_fd);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) return errnoStatus(errno, "frame ring: opening " + path);
  struct flock lock = lockOf(side, F_WRLCK);
  if (::fcntl(file.get(), F_OFD_SETLK, &lock) != 0) {
    if (errno == EAGAIN || errno == EACCES) {
      return absl::AlreadyExistsError(side == kWriterSide ? "frame ring has a writer already"
                                                          : "frame ring has a reader already");
    }
    return errnoStatus(errno, "frame ring: locking its side");
  }
  return SideLock(std::move(file));
}

bool SideLock::heldByOther(uint32_t side) const {
  struct flock lock = lockOf(side, F_WRLCK);
  if (::fcntl(file_.get(), F_OFD_GETLK, &lock) != 0) return true;  // cannot tell: the deadline decides
  return lock.l_type != F_UNLCK;
}

namespace {

// Waits until `ready` says so. Fails when the ring is aborted, the peer died or the deadline passed.
template <class Ready>
Status waitFor(const RingMapping& mapping, const SideLock& lock, uint32_t peer, std::atomic<uint32_t>& wake,
               Clock::TimePoint deadline, const Ready& ready) {
  const char* peer_name = peer == kWriterSide ? "writer" : "reader";
  bool peer_is_dead = false;
  while (true) {
    const uint32_t seen = wake.load(std::memory_order_acquire);
    LATENTD_RETURN_IF_ERROR(mapping.aborted());
    LATENTD_ASSIGN_OR_RETURN(const bool is_ready, ready());
    if (is_ready) return absl::OkStatus();
    // Said after one more look: the peer's last act may have been to make us ready.
    if (peer_is_dead) {
      return mapping.abort(absl::UnavailableError(std::string("frame ring: the process of its ") + peer_name + " died"),
                           peer == kWriterSide ? RingParty::kWriter : RingParty::kReader);
    }
    const Clock::TimePoint now = std::chrono::steady_clock::now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(std::string("frame ring: its ") + peer_name + " made no progress in time");
    }
    peer_is_dead = mapping.header().attached[peer].load(std::memory_order_acquire) != 0 && !lock.heldByOther(peer);
    if (!peer_is_dead) futexWait(wake, seen, std::min<Clock::TimePoint>(deadline, now + kLivenessPeriod));
  }
}

}  // namespace
}  // namespace internal

using internal::RingMapping;
using internal::SideLock;

uint64_t frameBytes(const FrameGeometry& geometry) {
  const uint64_t channel_bytes = geometry.format == PixelFormat::kRgbF32 ? sizeof(float) : 1;
  return uint64_t{geometry.width} * geometry.height * 3 * channel_bytes;
}

// ---- creator ------------------------------------------------------------------------------------------------

FrameRing::FrameRing(RingMapping mapping) : mapping_(std::make_shared<RingMapping>(std::move(mapping))) {}

StatusOr<FrameRing> FrameRing::create(const FrameGeometry& geometry) {
  LATENTD_ASSIGN_OR_RETURN(RingMapping mapping, RingMapping::create(geometry));
  return FrameRing(std::move(mapping));
}

uint32_t FrameRing::framesCommitted() const { return mapping_->header().produced.load(std::memory_order_acquire); }

bool FrameRing::finished() const { return mapping_->header().finished.load(std::memory_order_acquire) != 0; }

// ---- writer -------------------------------------------------------------------------------------------------

FrameRingWriter::FrameRingWriter(RingMapping mapping, SideLock lock)
    : mapping_(std::make_unique<RingMapping>(std::move(mapping))), lock_(std::move(lock)) {
  mapping_->header().attached[internal::kWriterSide].store(1, std::memory_order_release);
  produced_ = mapping_->header().produced.load(std::memory_order_acquire);
}

FrameRingWriter::FrameRingWriter(FrameRingWriter&&) noexcept = default;

FrameRingWriter::~FrameRingWriter() {
  if (mapping_ != nullptr && !finished_)
    abort(absl::CancelledError("frame ring: its writer went before the last frame"));
}

StatusOr<FrameRingWriter> FrameRingWriter::attach(ShmRegion memory) {
  LATENTD_ASSIGN_OR_RETURN(RingMapping mapping, RingMapping::of(std::move(memory)));
  LATENTD_ASSIGN_OR_RETURN(SideLock lock, SideLock::acquire(mapping.fd(), internal::kWriterSide));
  return FrameRingWriter(std::move(mapping), std::move(lock));
}

StatusOr<bool> FrameRingWriter::full() const {
  const uint32_t pending = produced_ - mapping_->header().consumed.load(std::memory_order_acquire);
  const uint32_t capacity = mapping_->geometry().capacity;
  if (pending <= capacity) return pending == capacity;
  return mapping_->abort(absl::DataLossError("frame ring: its reader claims frames that were never written"),
                         RingParty::kReader);
}

StatusOr<std::span<std::byte>> FrameRingWriter::reserve(Clock::TimePoint deadline) {
  LATENTD_CHECK(!finished_, "no frame follows finish()");
  const auto has_room = [&]() -> StatusOr<bool> {
    LATENTD_ASSIGN_OR_RETURN(const bool is_full, full());
    return !is_full;
  };
  LATENTD_RETURN_IF_ERROR(
      internal::waitFor(*mapping_, lock_, internal::kReaderSide, mapping_->header().writer_wake, deadline, has_room));
  reserved_ = true;
  return std::span<std::byte>(mapping_->frame(produced_), mapping_->frameBytes());
}

void FrameRingWriter::commit() {
  LATENTD_CHECK(reserved_, "commit() follows reserve()");
  reserved_ = false;
  internal::RingHeader& header = mapping_->header();
  header.produced.store(++produced_, std::memory_order_release);  // publishes the pixels
  header.reader_wake.fetch_add(1, std::memory_order_release);
  futexWakeAll(header.reader_wake);
}

Status FrameRingWriter::finish() {
  LATENTD_CHECK(!reserved_, "a reserved frame is committed before finish()");
  LATENTD_RETURN_IF_ERROR(mapping_->aborted());
  finished_ = true;
  internal::RingHeader& header = mapping_->header();
  header.finished.store(1, std::memory_order_release);
  header.reader_wake.fetch_add(1, std::memory_order_release);
  futexWakeAll(header.reader_wake);
  return absl::OkStatus();
}

// ---- reader -------------------------------------------------------------------------------------------------

FrameRingReader::FrameRingReader(std::shared_ptr<RingMapping> mapping, SideLock lock)
    : mapping_(std::move(mapping)), lock_(std::move(lock)) {
  mapping_->header().attached[internal::kReaderSide].store(1, std::memory_order_release);
  consumed_ = mapping_->header().consumed.load(std::memory_order_acquire);
}

FrameRingReader::FrameRingReader(FrameRingReader&&) noexcept = default;

FrameRingReader::~FrameRingReader() {
  if (mapping_ != nullptr && !ended_) abort(absl::CancelledError("frame ring: its reader went before the last frame"));
}

StatusOr<FrameRingReader> FrameRingReader::attach(ShmRegion memory) {
  LATENTD_ASSIGN_OR_RETURN(RingMapping mapping, RingMapping::of(std::move(memory)));
  return attach(std::make_shared<RingMapping>(std::move(mapping)));
}

StatusOr<FrameRingReader> FrameRingReader::attach(const FrameRing& ring) { return attach(ring.mapping_); }

StatusOr<FrameRingReader> FrameRingReader::attach(std::shared_ptr<RingMapping> mapping) {
  LATENTD_ASSIGN_OR_RETURN(SideLock lock, SideLock::acquire(mapping->fd(), internal::kReaderSide));
  return FrameRingReader(std::move(mapping), std::move(lock));
}

StatusOr<FrameRingReader::Content> FrameRingReader::content() const {
  const internal::RingHeader& header = mapping_->header();
  // Read before the counter: a writer commits its last frame first and finishes then.
  const bool finished = header.finished.load(std::memory_order_acquire) != 0;
  const uint32_t pending = header.produced.load(std::memory_order_acquire) - consumed_;
  if (pending > mapping_->geometry().capacity) {
    return mapping_->abort(absl::DataLossError("frame ring: its writer claims more frames than fit"),
                           RingParty::kWriter);
  }
  if (pending > 0) return Content::kFrame;
  return finished ? Content::kEnd : Content::kNothingYet;
}

StatusOr<std::optional<std::span<const std::byte>>> FrameRingReader::next(Clock::TimePoint deadline) {
  LATENTD_CHECK(!holding_, "release() comes before the next next()");
  Content found = ended_ ? Content::kEnd : Content::kNothingYet;
  if (!ended_) {
    const auto has_content = [&]() -> StatusOr<bool> {
      LATENTD_ASSIGN_OR_RETURN(found, content());
      return found != Content::kNothingYet;
    };
    LATENTD_RETURN_IF_ERROR(internal::waitFor(*mapping_, lock_, internal::kWriterSide, mapping_->header().reader_wake,
                                              deadline, has_content));
  }
  ended_ = found == Content::kEnd;
  if (ended_) return std::optional<std::span<const std::byte>>();
  holding_ = true;
  const std::byte* frame = mapping_->frame(consumed_);
  return std::optional(std::span<const std::byte>(frame, mapping_->frameBytes()));
}

void FrameRingReader::release() {
  LATENTD_CHECK(holding_, "release() follows next()");
  holding_ = false;
  internal::RingHeader& header = mapping_->header();
  header.consumed.store(++consumed_, std::memory_order_release);
  header.writer_wake.fetch_add(1, std::memory_order_release);
  futexWakeAll(header.writer_wake);
}

}  // namespace latentd::media
