#include "runtime/media/frame_rate.h"

#include <cmath>
#include <limits>

#include "tests/support/catch.h"

namespace latentd::media {

TEST_CASE("frame rate: the fraction that is meant", "[media]") {
  const std::pair<double, FrameRate> cases[] = {
      {8, {8, 1}},
      {25, {25, 1}},
      {12.5, {25, 2}},
      {29.97, {30000, 1001}},
      {30000.0 / 1001, {30000, 1001}},
      {23.976, {24000, 1001}},
      {23.98, {24000, 1001}},
      {59.94, {60000, 1001}},
      {0.01, {1, 100}},
      {1000, {1000, 1}},
      {1.0 / 3, {1, 3}},
      {7.25, {29, 4}},
  };
  for (const auto& [rate, fraction] : cases) {
    INFO(rate);
    const StatusOr<FrameRate> found = toFrameRate(rate);
    REQUIRE(found.ok());
    CHECK(toString(*found) == toString(fraction));
  }
}

TEST_CASE("frame rate: any rate is near its fraction, whose parts fit", "[media]") {
  for (double rate = 0.01; rate <= 1000; rate *= 1.0173) {
    INFO(rate);
    const StatusOr<FrameRate> found = toFrameRate(rate);
    REQUIRE(found.ok());
    CHECK(found->numerator <= kFrameRatePartMax);
    CHECK(found->denominator <= kFrameRatePartMax);
    const double error = std::abs(static_cast<double>(found->numerator) / found->denominator - rate);
    CHECK(error < std::max(0.0051, rate * 1e-4));
    CHECK(*parseFrameRate(toString(*found)) == *found);
  }
}

TEST_CASE("frame rate: what is no rate is refused", "[media]") {
  for (const double rate : {0.0, -1.0, 0.009, 1000.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    INFO(rate);
    CHECK(absl::IsInvalidArgument(toFrameRate(rate).status()));
  }
  for (const char* text : {"", "30", "30/", "/1", "30/0", "0/1", "30/1x", "-30/1", "65536/1", "30:1"}) {
    INFO(text);
    CHECK(absl::IsInvalidArgument(parseFrameRate(text).status()));
  }
}

}  // namespace latentd::media
