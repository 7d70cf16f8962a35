#include "runtime/media/frame_ring.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/child_test_case.h"

namespace latentd::media {
namespace {

using latentd::testing::ChildTestCase;

constexpr FrameGeometry kSmall{.width = 5, .height = 3, .format = PixelFormat::kRgb8, .capacity = 3};

Clock::TimePoint in(std::chrono::milliseconds wait) { return std::chrono::steady_clock::now() + wait; }
Clock::TimePoint soon() { return in(std::chrono::seconds(20)); }
Clock::TimePoint past() { return std::chrono::steady_clock::now(); }

FrameRing makeRing(const FrameGeometry& geometry = kSmall) {
  auto ring = FrameRing::create(geometry);
  REQUIRE(ring.ok());
  return std::move(ring).value();
}

UniqueFd fdOf(const FrameRing& ring) { return duplicateFd(ring.fd()).value(); }
ShmRegion memoryOf(UniqueFd fd) { return ShmRegion::map(std::move(fd), 1).value(); }
ShmRegion memoryOf(const FrameRing& ring) { return memoryOf(fdOf(ring)); }

// Frame n is filled with bytes that depend on n.
Status writeFrame(FrameRingWriter& writer, uint32_t n, Clock::TimePoint deadline) {
  LATENTD_ASSIGN_OR_RETURN(const std::span<std::byte> frame, writer.reserve(deadline));
  for (size_t i = 0; i < frame.size(); ++i)
    frame[i] = static_cast<std::byte>(n * 31 + i);
  writer.commit();
  return absl::OkStatus();
}

bool isFrame(std::span<const std::byte> frame, uint32_t n) {
  for (size_t i = 0; i < frame.size(); ++i) {
    if (frame[i] != static_cast<std::byte>(n * 31 + i)) return false;
  }
  return true;
}

// Reads until the end or an error; counts frames that are what was written.
StatusOr<uint32_t> drain(FrameRingReader& reader) {
  uint32_t good = 0;
  while (true) {
    LATENTD_ASSIGN_OR_RETURN(const auto frame, reader.next(soon()));
    if (!frame) return good;
    good += isFrame(*frame, reader.framesRead()) ? 1 : 0;
    reader.release();
  }
}

TEST_CASE("frame ring: many frames arrive whole and in order through a small ring", "[media]") {
  const uint32_t capacity = GENERATE(1u, 2u, 7u);
  const FrameRing ring = makeRing({.width = 33, .height = 9, .format = PixelFormat::kRgbF32, .capacity = capacity});
  auto writer = FrameRingWriter::attach(memoryOf(ring));
  REQUIRE(writer.ok());
  constexpr uint32_t kFrames = 500;
  Status written;
  std::thread filling([&] {
    for (uint32_t n = 0; n < kFrames && written.ok(); ++n)
      written = writeFrame(*writer, n, soon());
    if (written.ok()) written = writer->finish();
  });
  auto reader = FrameRingReader::attach(memoryOf(ring));
  REQUIRE(reader.ok());
  const auto good = drain(*reader);
  filling.join();
  CHECK(written.ok());
  REQUIRE(good.ok());
  CHECK(*good == kFrames);
  CHECK(ring.finished());
  CHECK(ring.framesCommitted() == kFrames);
  // The end is stable.
  const auto after = reader->next(past());
  REQUIRE(after.ok());
  CHECK_FALSE(after->has_value());
}

TEST_CASE("frame ring: a full ring holds the writer to its deadline, an empty one the reader", "[media]") {
  const FrameRing ring = makeRing();
  auto writer = FrameRingWriter::attach(memoryOf(ring));
  auto reader = FrameRingReader::attach(memoryOf(ring));
  CHECK(reader->next(in(std::chrono::milliseconds(30))).status().code() == absl::StatusCode::kDeadlineExceeded);
  for (uint32_t n = 0; n < kSmall.capacity; ++n)
    REQUIRE(writeFrame(*writer, n, past()).ok());
  CHECK(writeFrame(*writer, 3, in(std::chrono::milliseconds(30))).code() == absl::StatusCode::kDeadlineExceeded);
  // A deadline is no failure of the ring: one frame out makes room for one.
  REQUIRE(reader->next(past()).ok());
  reader->release();
  CHECK(writeFrame(*writer, 3, past()).ok());
  CHECK(writer->finish().ok());
  CHECK(drain(*reader).ok());
  CHECK(reader->framesRead() == 4);
}

TEST_CASE("frame ring: an abort by anybody wakes both sides, the first reason stays", "[media]") {
  FrameRing ring = makeRing();
  auto writer = FrameRingWriter::attach(memoryOf(ring));
  auto reader = FrameRingReader::attach(memoryOf(ring));
  SECTION("the owner, while the reader sleeps") {
    std::thread cancelling([&] { ring.abort(absl::CancelledError("job 7 was cancelled")); });
    const Status read = reader->next(soon()).status();
    cancelling.join();
    CHECK(read == absl::CancelledError("job 7 was cancelled"));
    CHECK(ring.atFault() == RingParty::kOwner);
  }
  SECTION("another thread of the writer, while the writer sleeps") {
    for (uint32_t n = 0; n < kSmall.capacity; ++n)
      REQUIRE(writeFrame(*writer, n, past()).ok());
    std::thread cancelling([&] { writer->abort(absl::CancelledError("job 7 was cancelled")); });
    const Status written = writeFrame(*writer, 3, soon());
    cancelling.join();
    CHECK(written == absl::CancelledError("job 7 was cancelled"));
    CHECK(ring.atFault() == RingParty::kWriter);
  }
  SECTION("the reader: its encoder failed") {
    reader->abort(absl::CancelledError("job 7 was cancelled"));
    CHECK(ring.atFault() == RingParty::kReader);
  }
  SECTION("the reader, of what the writer did") {
    reader->blameWriter(absl::CancelledError("job 7 was cancelled"));
    CHECK(ring.atFault() == RingParty::kWriter);
  }
  ring.abort(absl::InternalError("too late"));
  CHECK(reader->next(soon()).status() == absl::CancelledError("job 7 was cancelled"));
  CHECK(writer->reserve(soon()).status() == absl::CancelledError("job 7 was cancelled"));
  CHECK(writer->finish() == absl::CancelledError("job 7 was cancelled"));
  CHECK(ring.aborted() == absl::CancelledError("job 7 was cancelled"));
}

TEST_CASE("frame ring: a long reason is cut, not refused", "[media]") {
  FrameRing ring = makeRing();
  ring.abort(absl::InternalError(std::string(100'000, 'x')));
  CHECK(ring.aborted().code() == absl::StatusCode::kInternal);
  CHECK(messageOf(ring.aborted()) == std::string(1024, 'x'));
}

TEST_CASE("frame ring: a side that goes early aborts, one that ends well does not", "[media]") {
  const FrameRing ring = makeRing();
  auto reader = FrameRingReader::attach(memoryOf(ring));
  SECTION("writer without finish()") {
    { auto writer = FrameRingWriter::attach(memoryOf(ring)); }
    CHECK(reader->next(soon()).status().code() == absl::StatusCode::kCancelled);
    CHECK(ring.atFault() == RingParty::kWriter);
  }
  SECTION("writer after finish()") {
    {
      auto writer = FrameRingWriter::attach(memoryOf(ring));
      REQUIRE(writeFrame(*writer, 0, past()).ok());
      REQUIRE(writer->finish().ok());
    }
    CHECK(*drain(*reader) == 1);
    CHECK(ring.aborted().ok());
    CHECK(ring.atFault() == RingParty::kNobody);
  }
}

TEST_CASE("frame ring: one writer and one reader", "[media]") {
  const FrameRing ring = makeRing();
  auto writer = FrameRingWriter::attach(memoryOf(ring));
  auto reader = FrameRingReader::attach(memoryOf(ring));
  REQUIRE(reader.ok());
  CHECK(FrameRingWriter::attach(memoryOf(ring)).status().code() == absl::StatusCode::kAlreadyExists);
  CHECK(FrameRingReader::attach(memoryOf(ring)).status().code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("frame ring: a reader of the creator's process is one like any other, and outlives the ring", "[media]") {
  std::optional<FrameRing> ring(makeRing());
  auto reader = FrameRingReader::attach(*ring);
  REQUIRE(reader.ok());
  CHECK(FrameRingReader::attach(*ring).status().code() == absl::StatusCode::kAlreadyExists);
  CHECK(FrameRingReader::attach(memoryOf(*ring)).status().code() == absl::StatusCode::kAlreadyExists);
  auto writer = FrameRingWriter::attach(memoryOf(*ring));
  REQUIRE(writer.ok());
  ring.reset();
  std::span<std::byte> filled = writer->reserve(soon()).value();
  std::fill(filled.begin(), filled.end(), std::byte{7});
  writer->commit();
  REQUIRE(writer->finish().ok());
  const auto frame = reader->next(soon()).value();
  REQUIRE(frame.has_value());
  CHECK(frame->front() == std::byte{7});
  CHECK(frame->back() == std::byte{7});
  reader->release();
  CHECK_FALSE(reader->next(soon()).value().has_value());
}

TEST_CASE("frame ring: bad geometry and foreign memory are refused", "[media]") {
  const auto code = [](FrameGeometry geometry) { return FrameRing::create(geometry).status().code(); };
  CHECK(code({.width = 0, .height = 1, .capacity = 1}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.width = 1, .height = kFrameSideMax + 1, .capacity = 1}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.width = 1, .height = 1, .capacity = 0}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.width = 16384, .height = 16384, .capacity = 8}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.width = 1, .height = 1, .format = PixelFormat{9}, .capacity = 1}) == absl::StatusCode::kInvalidArgument);

  auto zeros = ShmRegion::create("not-a-ring", 8192);
  CHECK(FrameRingReader::attach(memoryOf(duplicateFd(zeros->fd()).value())).status().code() ==
        absl::StatusCode::kInvalidArgument);
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), 1 << 20) == 0);
  CHECK(ShmRegion::map(std::move(unsealed), 1).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(FrameRingWriter::attach(ShmRegion::create("small", 100).value()).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

// What a peer writes is hostile until checked: every 32-bit word of the header in turn gets a wild value.
TEST_CASE("frame ring: no value in the header makes the reader touch memory outside", "[media]") {
  const bool before_attach = GENERATE(true, false);
  for (size_t offset = 0; offset < 4096; offset += 4) {
    const FrameRing ring = makeRing();
    auto writer = FrameRingWriter::attach(memoryOf(ring));
    REQUIRE(writeFrame(*writer, 0, past()).ok());
    ShmRegion bytes = ShmRegion::map(fdOf(ring), 4096).value();
    const uint32_t wild = 0xfffffff0;
    const auto corrupt = [&] { std::memcpy(bytes.data() + offset, &wild, sizeof(wild)); };
    if (before_attach) corrupt();
    auto reader = FrameRingReader::attach(memoryOf(ring));
    if (!before_attach) corrupt();
    if (!reader.ok()) continue;
    const auto frame = reader->next(past());
    if (frame.ok() && frame->has_value()) {
      CHECK((*frame)->size() == frameBytes(kSmall));
      CHECK(reinterpret_cast<const std::byte*>((*frame)->data())[0] == std::byte{0});
    }
  }
}

// ---- two processes ------------------------------------------------------------------------------------------

TEST_CASE("frame ring child writer", "[.][child]") {
  auto writer = FrameRingWriter::attach(memoryOf(UniqueFd(3)));
  REQUIRE(writer.ok());
  for (uint32_t n = 0; n < 100; ++n)
    REQUIRE(writeFrame(*writer, n, soon()).ok());
  REQUIRE(writer->finish().ok());
}

TEST_CASE("frame ring child that writes two frames and hangs", "[.][child]") {
  auto writer = FrameRingWriter::attach(memoryOf(UniqueFd(3)));
  for (uint32_t n = 0; n < 2; ++n)
    REQUIRE(writeFrame(*writer, n, soon()).ok());
  ::pause();
}

TEST_CASE("frame ring child that reads one frame and hangs", "[.][child]") {
  auto reader = FrameRingReader::attach(memoryOf(UniqueFd(3)));
  REQUIRE(reader->next(soon()).ok());
  reader->release();
  ::pause();
}

TEST_CASE("frame ring: frames cross a process boundary", "[media][process]") {
  const FrameRing ring = makeRing();
  ChildTestCase child("frame ring child writer", {ring.fd()});
  auto reader = FrameRingReader::attach(memoryOf(ring));
  const auto good = drain(*reader);
  REQUIRE(good.ok());
  CHECK(*good == 100);
  CHECK(child.wait(std::chrono::seconds(20)) == 0);
}

TEST_CASE("frame ring: SIGKILL of the writer fails the reader after the frames that came", "[media][process]") {
  const FrameRing ring = makeRing();
  ChildTestCase child("frame ring child that writes two frames and hangs", {ring.fd()});
  auto reader = FrameRingReader::attach(memoryOf(ring));
  for (uint32_t n = 0; n < 2; ++n) {
    const auto frame = reader->next(soon());
    REQUIRE(frame.ok());
    CHECK(isFrame(**frame, n));
    reader->release();
  }
  // Alive but silent is the deadline's business.
  CHECK(reader->next(in(kLivenessPeriod * 2)).status().code() == absl::StatusCode::kDeadlineExceeded);
  std::thread killing([&] { child.signal(SIGKILL); });
  const auto started = std::chrono::steady_clock::now();
  const Status status = reader->next(soon()).status();
  killing.join();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(ring.atFault() == RingParty::kWriter);
  CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(15));
  CHECK(child.wait(std::chrono::seconds(20)) == 128 + SIGKILL);
}

TEST_CASE("frame ring: SIGKILL of the reader fails the blocked writer", "[media][process]") {
  const FrameRing ring = makeRing();
  ChildTestCase child("frame ring child that reads one frame and hangs", {ring.fd()});
  auto writer = FrameRingWriter::attach(memoryOf(ring));
  for (uint32_t n = 0; n <= kSmall.capacity; ++n)
    REQUIRE(writeFrame(*writer, n, soon()).ok());
  std::thread killing([&] { child.signal(SIGKILL); });
  const Status status = writer->reserve(soon()).status();
  killing.join();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(ring.atFault() == RingParty::kReader);
  // Sticky, and a new reader learns of it too.
  CHECK(writer->finish().code() == absl::StatusCode::kUnavailable);
  CHECK(child.wait(std::chrono::seconds(20)) == 128 + SIGKILL);
  auto late = FrameRingReader::attach(memoryOf(ring));
  CHECK(late->next(soon()).status().code() == absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace latentd::media
