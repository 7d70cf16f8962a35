#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace latentd::media {

// What libav reads back from a file.
struct DecodedVideo {
  std::string container;  // libav's names
  std::string codec;
  std::string pixel_format;
  std::string matrix;
  std::string range;
  int width = 0;
  int height = 0;
  int rate_numerator = 0;
  int rate_denominator = 0;
  std::vector<std::vector<std::byte>> frames;  // RGB, 8 bit, interleaved
  std::vector<double> seconds;                 // of each frame
};

// Fails the test when the file is no video.
DecodedVideo decodeVideo(const std::string& file);

}  // namespace latentd::media
