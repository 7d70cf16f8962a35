#include "runtime/media/raw_writer.h"

#include <fcntl.h>

#include <cmath>
#include <cstring>

#include "runtime/media/color.h"
#include "tests/runtime/media/temp_dir.h"
#include "tests/runtime/media/test_video.h"
#include "tests/support/catch.h"

namespace latentd::media {
namespace {

constexpr uint32_t kWidth = 37;
constexpr uint32_t kHeight = 21;

VideoSpec spec(uint32_t frames, PixelFormat format = PixelFormat::kRgb8) {
  return {kWidth, kHeight, format, {30000, 1001}, frames};
}

UniqueFd createFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  REQUIRE(fd.valid());
  return fd;
}

// Writes `written` frames with a writer that was told `expected`; the file's bytes.
std::string writeVideo(RawFormat format, uint32_t expected, uint32_t written) {
  const TempDir dir;
  auto writer = makeRawWriter(format, spec(expected), createFile(dir.file("v")), "v");
  REQUIRE(writer.ok());
  for (uint32_t n = 0; n < written; ++n)
    REQUIRE((*writer)->write(testFrame(kWidth, kHeight, n)).ok());
  REQUIRE((*writer)->finish().ok());
  return readFile(dir.file("v"));
}

bool holdsFrame(const std::string& file, size_t offset, uint32_t n) {
  const std::vector<std::byte> frame = testFrame(kWidth, kHeight, n);
  return file.size() >= offset + frame.size() && std::memcmp(file.data() + offset, frame.data(), frame.size()) == 0;
}

}  // namespace

TEST_CASE("rgb24: the bare frames", "[media]") {
  const std::string file = writeVideo(RawFormat::kRgb24, 5, 5);
  CHECK(file.size() == rawFileBytes(RawFormat::kRgb24, spec(5)));
  for (uint32_t n = 0; n < 5; ++n)
    CHECK(holdsFrame(file, n * kWidth * kHeight * 3, n));
}

TEST_CASE("npy: a header that NumPy's format describes, then the pixels", "[media]") {
  const uint32_t written = GENERATE(4u, 3u, 5u);  // fewer and more than the header said at first
  const std::string file = writeVideo(RawFormat::kNpy, 4, written);
  REQUIRE(file.size() == rawFileBytes(RawFormat::kNpy, spec(written)));
  CHECK(file.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  const size_t header_bytes = static_cast<unsigned char>(file[8]) + 256 * static_cast<unsigned char>(file[9]);
  CHECK((10 + header_bytes) % 64 == 0);
  std::string header = file.substr(10, header_bytes);
  REQUIRE(header.back() == '\n');
  header.erase(header.find_last_not_of(" \n") + 1);
  CHECK(header == "{'descr': '|u1', 'fortran_order': False, 'shape': (" + std::to_string(written) + ", 21, 37, 3), }");
  for (uint32_t n = 0; n < written; ++n)
    CHECK(holdsFrame(file, 10 + header_bytes + n * kWidth * kHeight * 3, n));
}

TEST_CASE("npy: floats are kept as they are", "[media]") {
  const TempDir dir;
  auto writer = makeRawWriter(RawFormat::kNpy, spec(1, PixelFormat::kRgbF32), createFile(dir.file("v")), "v");
  REQUIRE(writer.ok());
  std::vector<float> pixels(kWidth * kHeight * 3);
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<float>(i) / static_cast<float>(pixels.size());
  REQUIRE((*writer)->write(std::as_bytes(std::span<const float>(pixels))).ok());
  REQUIRE((*writer)->finish().ok());
  const std::string file = readFile(dir.file("v"));
  REQUIRE(file.size() == rawFileBytes(RawFormat::kNpy, spec(1, PixelFormat::kRgbF32)));
  CHECK(file.find("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 21, 37, 3), }") == 10);
  CHECK(std::memcmp(file.data() + 128, pixels.data(), pixels.size() * sizeof(float)) == 0);
}

TEST_CASE("y4m: header, then frames of three whole planes", "[media]") {
  const std::string file = writeVideo(RawFormat::kY4m, 3, 3);
  const std::string header = "YUV4MPEG2 W37 H21 F30000:1001 Ip A1:1 C444 XCOLORRANGE=LIMITED\n";
  REQUIRE(file.size() == rawFileBytes(RawFormat::kY4m, spec(3)));
  CHECK(file.substr(0, header.size()) == header);
  std::vector<std::byte> planes(kWidth * kHeight * 3);
  for (uint32_t n = 0; n < 3; ++n) {
    const size_t at = header.size() + n * (6 + planes.size());
    CHECK(file.substr(at, 6) == "FRAME\n");
    rgbToYuv444(testFrame(kWidth, kHeight, n), ColorMatrix::kBt601, planes);
    CHECK(std::memcmp(file.data() + at + 6, planes.data(), planes.size()) == 0);
  }
}

TEST_CASE("color: the standards' known values", "[media]") {
  struct Known {
    int rgb[3];
    int bt601[3];
    int bt709[3];
  };
  // Of the 75 % and 100 % colour bars of ITU-R BT.801 and BT.709.
  const Known known[] = {
      {{255, 255, 255}, {235, 128, 128}, {235, 128, 128}}, {{0, 0, 0}, {16, 128, 128}, {16, 128, 128}},
      {{255, 0, 0}, {81, 90, 240}, {63, 102, 240}},        {{0, 255, 0}, {145, 54, 34}, {173, 42, 26}},
      {{0, 0, 255}, {41, 240, 110}, {32, 240, 118}},       {{255, 255, 0}, {210, 16, 146}, {219, 16, 138}},
  };
  for (const Known& color : known) {
    std::byte rgb[3];
    for (int c = 0; c < 3; ++c)
      rgb[c] = static_cast<std::byte>(color.rgb[c]);
    std::byte planes[3];
    rgbToYuv444(rgb, ColorMatrix::kBt601, planes);
    for (int c = 0; c < 3; ++c)
      CHECK(static_cast<int>(planes[c]) == color.bt601[c]);
    rgbToYuv444(rgb, ColorMatrix::kBt709, planes);
    for (int c = 0; c < 3; ++c)
      CHECK(static_cast<int>(planes[c]) == color.bt709[c]);
  }
  CHECK(matrixFor(719) == ColorMatrix::kBt601);
  CHECK(matrixFor(720) == ColorMatrix::kBt709);
}

TEST_CASE("color: every grey keeps neutral chroma and the rounding of the exact luma", "[media]") {
  for (int grey = 0; grey < 256; ++grey) {
    const std::byte rgb[3] = {std::byte(grey), std::byte(grey), std::byte(grey)};
    std::byte planes[3];
    rgbToYuv444(rgb, ColorMatrix::kBt709, planes);
    CHECK(static_cast<int>(planes[0]) == std::lround(16 + grey * 219.0 / 255));
    CHECK(static_cast<int>(planes[1]) == 128);
    CHECK(static_cast<int>(planes[2]) == 128);
  }
}

TEST_CASE("raw formats: floats only in npy, a full disk is named", "[media]") {
  const TempDir dir;
  CHECK(absl::IsInvalidArgument(
      makeRawWriter(RawFormat::kY4m, spec(1, PixelFormat::kRgbF32), createFile(dir.file("v")), "v").status()));
  const RawFormat format = GENERATE(RawFormat::kNpy, RawFormat::kY4m, RawFormat::kRgb24);
  auto writer = makeRawWriter(format, spec(1), UniqueFd(::open("/dev/full", O_RDWR | O_CLOEXEC)), "the file");
  REQUIRE(writer.ok());
  const Status status = (*writer)->write(testFrame(kWidth, kHeight, 0));
  CHECK(absl::IsResourceExhausted(status));
  CHECK(messageOf(status) == "write the file at byte 0: No space left on device");
}

}  // namespace latentd::media
