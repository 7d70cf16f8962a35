#include "runtime/worker/ring_frame_sink.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "tests/support/catch.h"

namespace latentd::worker {
namespace {

using media::FrameGeometry;
using media::FrameRing;
using media::FrameRingReader;
using media::FrameRingWriter;
using media::PixelFormat;

Clock::TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

constexpr uint64_t kRingId = 7;

struct Sink {
  explicit Sink(PixelFormat format, bool deferred = false, bool here = true)
      : ring(FrameRing::create({.width = 4, .height = 2, .format = format, .capacity = 3}).value()),
        reader(FrameRingReader::attach(ring).value()),
        sink(inbox, kRingId,
             {.wait_max = std::chrono::seconds(20),
              .cancel = cancel.get_token(),
              .deferred = deferred,
              .on_frame = [this] { ++reported; }}) {
    if (here) arrive();
    CHECK(sink.attachIfHere().ok());
  }
  void arrive() { inbox.put(kRingId, duplicateFd(ring.fd()).value()); }

  std::stop_source cancel;
  int reported = 0;
  FrameRing ring;
  FrameRingReader reader;
  DescriptorInbox inbox;
  RingFrameSink sink;
};

TEST_CASE("frame sink: rounding is half to even for every level and its neighbours", "[worker]") {
  std::vector<float> values;
  for (int level = 0; level < 256; ++level) {
    for (const float offset : {-0.5F, -0.25F, 0.0F, 0.25F, 0.5F}) {
      const float value = (static_cast<float>(level) + offset) / 255.0F;
      for (const float near : {std::nextafter(value, -1.0F), value, std::nextafter(value, 2.0F)})
        values.push_back(near);
    }
  }
  std::vector<uint8_t> bytes(values.size());
  quantise(values.data(), bytes.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const float clamped = std::min(std::max(values[i], 0.0F), 1.0F);
    REQUIRE(bytes[i] == static_cast<int>(std::nearbyint(clamped * 255.0F)));
  }
  const float special[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::infinity(), -0.0F, 1e30F};
  uint8_t out[5];
  quantise(special, out, 5);
  CHECK(std::vector<int>(out, out + 5) == std::vector<int>{0, 0, 255, 0, 255});
}

TEST_CASE("frame sink: a chunk of frames arrives one by one, as bytes or as floats", "[worker]") {
  const PixelFormat format = GENERATE(PixelFormat::kRgb8, PixelFormat::kRgbF32);
  Sink s(format);
  const at::Tensor frames = at::linspace(0, 1, 48, at::TensorOptions().dtype(at::kFloat)).reshape({2, 2, 4, 3});
  REQUIRE(s.sink.write(frames).ok());
  REQUIRE(s.sink.finish().ok());
  CHECK(s.reported == 2);
  for (int64_t index = 0; index < 2; ++index) {
    const auto frame = s.reader.next(soon()).value();
    REQUIRE(frame.has_value());
    const float* expected = frames.const_data_ptr<float>() + index * 24;
    if (format == PixelFormat::kRgbF32) {
      CHECK(std::memcmp(frame->data(), expected, 24 * sizeof(float)) == 0);
    } else {
      uint8_t bytes[24];
      quantise(expected, bytes, 24);
      CHECK(std::memcmp(frame->data(), bytes, 24) == 0);
    }
    s.reader.release();
  }
  CHECK_FALSE(s.reader.next(soon()).value().has_value());
}

TEST_CASE("frame sink: frames of another shape or kind are refused", "[worker]") {
  Sink s(PixelFormat::kRgb8);
  const at::Tensor good = at::zeros({1, 2, 4, 3});
  for (const at::Tensor& bad : {at::zeros({2, 4, 3}), at::zeros({1, 4, 2, 3}), at::zeros({1, 2, 4, 4}),
                                good.to(at::kDouble), at::zeros({1, 3, 2, 4}).permute({0, 2, 3, 1})}) {
    Sink fresh(PixelFormat::kRgb8);
    CHECK(fresh.sink.write(bad).code() == absl::StatusCode::kInternal);
    CHECK(fresh.sink.write(good).code() == absl::StatusCode::kInternal);  // sticky
  }
}

TEST_CASE("frame sink: a cancel wakes a write that waits for the reader", "[worker][cancel]") {
  Sink s(PixelFormat::kRgb8);
  std::thread cancelling([&] { s.cancel.request_stop(); });
  const Status status = s.sink.write(at::zeros({10, 2, 4, 3}));
  cancelling.join();
  CHECK(status.code() == absl::StatusCode::kCancelled);
  CHECK(s.reader.next(soon()).status().code() == absl::StatusCode::kCancelled);
}

TEST_CASE("frame sink: the first frame waits for a ring that is being made, and so does an end without one",
          "[worker]") {
  Sink s(PixelFormat::kRgb8, false, false);
  CHECK(s.sink.framesWritten() == 0);
  const bool writes = GENERATE(true, false);
  std::thread arriving([&] { s.arrive(); });
  const Status status = writes ? s.sink.write(at::zeros({1, 2, 4, 3})) : s.sink.finish();
  arriving.join();
  CHECK(status.ok());
  CHECK(s.reader.next(soon()).value().has_value() == writes);
}

TEST_CASE("frame sink: a cancel ends the wait for a ring, before it or in it", "[worker][cancel]") {
  Sink s(PixelFormat::kRgb8, false, false);
  const bool before = GENERATE(true, false);
  if (before) s.cancel.request_stop();
  std::thread cancelling([&] { s.cancel.request_stop(); });
  const Status status = s.sink.write(at::zeros({1, 2, 4, 3}));
  cancelling.join();
  CHECK(status.code() == absl::StatusCode::kCancelled);
  s.sink.abort(status);
  // What comes now is closed: the memory of a ring is not kept for nobody.
  s.arrive();
  CHECK_FALSE(s.inbox.take(kRingId, std::chrono::steady_clock::now()).ok());
}

TEST_CASE("frame sink: in a group of ranks a failure waits for the next step", "[worker]") {
  Sink s(PixelFormat::kRgb8, true);
  s.ring.abort(absl::UnavailableError("the encoder died"));
  CHECK(s.sink.write(at::zeros({1, 2, 4, 3})).ok());
  CHECK(s.sink.failure() == absl::UnavailableError("the encoder died"));
  CHECK(s.sink.finish() == absl::UnavailableError("the encoder died"));
}

}  // namespace
}  // namespace latentd::worker
