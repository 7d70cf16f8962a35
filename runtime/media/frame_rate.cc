#include "runtime/media/frame_rate.h"

#include <charconv>
#include <cmath>

namespace latentd::media {
namespace {

// Television's rates are written with two or three digits: 29.97, 23.976.
constexpr double kTelevisionTolerance = 0.0051;
constexpr uint32_t kTelevisionDenominator = 1001;
// Of the continued fraction: what a double of some digits cannot mean more exactly.
constexpr double kFractionTolerance = 1e-9;

// n * 1000/1001 for the nominal rates that television has.
bool televisionRate(double rate, FrameRate& found) {
  for (const uint32_t nominal : {24u, 30u, 48u, 60u}) {
    const double exact = nominal * 1000.0 / kTelevisionDenominator;
    if (std::abs(rate - exact) > kTelevisionTolerance) continue;
    found = {nominal * 1000, kTelevisionDenominator};
    return true;
  }
  return false;
}

// The last convergent of the continued fraction whose parts fit.
FrameRate nearestFraction(double rate) {
  FrameRate before{0, 1};
  FrameRate current{1, 0};
  double rest = rate;
  while (true) {
    const double whole = std::floor(rest);
    const double numerator = whole * current.numerator + before.numerator;
    const double denominator = whole * current.denominator + before.denominator;
    if (numerator > kFrameRatePartMax || denominator > kFrameRatePartMax) return current;
    before = current;
    current = {static_cast<uint32_t>(numerator), static_cast<uint32_t>(denominator)};
    const double value = static_cast<double>(current.numerator) / current.denominator;
    if (rest - whole < kFractionTolerance || std::abs(value - rate) < kFractionTolerance * rate) return current;
    rest = 1 / (rest - whole);
  }
}

}  // namespace

StatusOr<FrameRate> toFrameRate(double frames_per_second) {
  if (!(frames_per_second >= kFrameRateMin && frames_per_second <= kFrameRateMax)) {
    return absl::InvalidArgumentError("fps: " + std::to_string(frames_per_second) +
                                      " is out of range; give a number from 0.01 to 1000");
  }
  FrameRate rate;
  if (televisionRate(frames_per_second, rate)) return rate;
  return nearestFraction(frames_per_second);
}

std::string toString(const FrameRate& rate) {
  return std::to_string(rate.numerator) + "/" + std::to_string(rate.denominator);
}

StatusOr<FrameRate> parseFrameRate(std::string_view text) {
  FrameRate rate;
  const char* const end = text.data() + text.size();
  const auto numerator = std::from_chars(text.data(), end, rate.numerator);
  const bool has_slash = numerator.ec == std::errc() && numerator.ptr != end && *numerator.ptr == '/';
  if (has_slash) {
    const auto denominator = std::from_chars(numerator.ptr + 1, end, rate.denominator);
    const auto fits = [](uint32_t part) { return part >= 1 && part <= kFrameRatePartMax; };
    const bool whole = denominator.ec == std::errc() && denominator.ptr == end;
    if (whole && fits(rate.numerator) && fits(rate.denominator)) return rate;
  }
  return absl::InvalidArgumentError("frame rate '" + std::string(text.substr(0, 40)) +
                                    "' is no fraction such as 30000/1001 with parts from 1 to 65535");
}

}  // namespace latentd::media
