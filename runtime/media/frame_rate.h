#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace latentd::media {

// Frames per second as containers store it.
struct FrameRate {
  uint32_t numerator = 0;
  uint32_t denominator = 1;

  friend bool operator==(const FrameRate&, const FrameRate&) = default;
};

// Frames per second that containers can say.
inline constexpr double kFrameRateMin = 0.01;
inline constexpr double kFrameRateMax = 1000;
// A gif counts in hundredths of a second.
inline constexpr double kGifFrameRateMax = 100;

// Both parts fit 16 bits: MPEG-4's time base has no more.
inline constexpr uint32_t kFrameRatePartMax = 65'535;

// The fraction that is meant: 29.97 is 30000/1001, 12.5 is 25/2, anything else the nearest fraction that fits.
// INVALID_ARGUMENT outside kFrameRateMin..kFrameRateMax.
StatusOr<FrameRate> toFrameRate(double frames_per_second);

// "30000/1001"
std::string toString(const FrameRate& rate);
StatusOr<FrameRate> parseFrameRate(std::string_view text);

}  // namespace latentd::media
