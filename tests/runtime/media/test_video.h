#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace latentd::media {

// Frame n of a video that codecs can hold: smooth colour ramps that drift, and a square that moves.
inline std::vector<std::byte> testFrame(uint32_t width, uint32_t height, uint32_t n) {
  std::vector<std::byte> frame(size_t{width} * height * 3);
  const uint32_t side = height / 4;
  const uint32_t left = (n * 3) % (width - side);
  for (uint32_t y = 0; y < height; ++y) {
    for (uint32_t x = 0; x < width; ++x) {
      const bool in_square = x >= left && x < left + side && y >= side && y < 2 * side;
      const uint32_t rgb[3] = {64 + 128 * x / width, 64 + 128 * y / height, 80 + 4 * n};
      for (uint32_t c = 0; c < 3; ++c) {
        frame[3 * (size_t{y} * width + x) + c] = static_cast<std::byte>(in_square ? (c == 0 ? 200 : 40) : rgb[c]);
      }
    }
  }
  return frame;
}

// Mean squared difference of 8-bit values.
inline double meanSquaredError(std::span<const std::byte> a, std::span<const std::byte> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<int>(a[i]) - static_cast<int>(b[i]);
    sum += difference * difference;
  }
  return sum / static_cast<double>(a.size());
}

}  // namespace latentd::media
