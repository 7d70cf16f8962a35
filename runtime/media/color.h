#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace latentd::media {

// How RGB becomes luma and chroma. Players that find no tag assume BT.709 from 720 lines on and BT.601 below; so we
// use the same, and tag it where the format can.
enum class ColorMatrix { kBt601, kBt709 };
ColorMatrix matrixFor(uint32_t height);

// 8-bit RGB, full range, interleaved -> three planes (Y, Cb, Cr) of one byte a pixel, not subsampled, limited range:
// Y = 16..235, Cb and Cr = 16..240 around 128, rounded to nearest. planes has the bytes of rgb: Y, then Cb, then Cr.
void rgbToYuv444(std::span<const std::byte> rgb, ColorMatrix matrix, std::span<std::byte> planes);

}  // namespace latentd::media
