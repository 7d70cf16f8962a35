#include "runtime/media/color.h"

#include "runtime/base/check.h"

namespace latentd::media {
namespace {

// Lines from which players assume BT.709.
constexpr uint32_t kHighDefinitionLines = 720;

// Weights of red and blue in luma; green has the rest (ITU-R BT.601, BT.709).
struct LumaWeights {
  float red;
  float blue;
};
constexpr LumaWeights kBt601Weights{0.299f, 0.114f};
constexpr LumaWeights kBt709Weights{0.2126f, 0.0722f};

constexpr float kFullRange = 255;
constexpr float kLumaRange = 219;    // 16..235
constexpr float kChromaRange = 224;  // 16..240
constexpr float kLumaOffset = 16;
constexpr float kChromaOffset = 128;

// The results lie in 16..240, so that adding a half and cutting off rounds to nearest.
std::byte rounded(float value) { return static_cast<std::byte>(static_cast<int>(value + 0.5f)); }

}  // namespace

ColorMatrix matrixFor(uint32_t height) {
  return height >= kHighDefinitionLines ? ColorMatrix::kBt709 : ColorMatrix::kBt601;
}

void rgbToYuv444(std::span<const std::byte> rgb, ColorMatrix matrix, std::span<std::byte> planes) {
  LATENTD_CHECK(rgb.size() % 3 == 0 && planes.size() == rgb.size(), "planes hold what the frame holds");
  const LumaWeights weights = matrix == ColorMatrix::kBt601 ? kBt601Weights : kBt709Weights;
  const float green = 1 - weights.red - weights.blue;
  const float luma_scale = kLumaRange / kFullRange;
  const float blue_scale = kChromaRange / (2 * (1 - weights.blue) * kFullRange);
  const float red_scale = kChromaRange / (2 * (1 - weights.red) * kFullRange);
  const size_t pixels = rgb.size() / 3;
  std::byte* const y = planes.data();
  std::byte* const cb = y + pixels;
  std::byte* const cr = cb + pixels;
  for (size_t i = 0; i < pixels; ++i) {
    const auto r = static_cast<float>(rgb[3 * i]);
    const auto g = static_cast<float>(rgb[3 * i + 1]);
    const auto b = static_cast<float>(rgb[3 * i + 2]);
    const float luma = weights.red * r + green * g + weights.blue * b;
    y[i] = rounded(kLumaOffset + luma_scale * luma);
    cb[i] = rounded(kChromaOffset + blue_scale * (b - luma));
    cr[i] = rounded(kChromaOffset + red_scale * (r - luma));
  }
}

}  // namespace latentd::media
