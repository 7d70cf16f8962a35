#include "runtime/media/av_writer.h"

#include <fcntl.h>

#include <cmath>

#include "runtime/media/raw_writer.h"
#include "runtime/media/sheet_writer.h"
#include "tests/runtime/media/av_decode.h"
#include "tests/runtime/media/temp_dir.h"
#include "tests/runtime/media/test_video.h"
#include "tests/support/catch.h"

extern "C" {
#include <libavutil/log.h>
}

namespace latentd::media {
namespace {

constexpr uint32_t kFrames = 12;

UniqueFd createFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  REQUIRE(fd.valid());
  return fd;
}

VideoSpec spec(uint32_t width, uint32_t height, uint32_t frames = kFrames) {
  return {width, height, PixelFormat::kRgb8, {30000, 1001}, frames};
}

void fill(FrameWriter& writer, const VideoSpec& spec, uint32_t frames = kFrames) {
  for (uint32_t n = 0; n < frames; ++n) {
    const Status written = writer.write(testFrame(spec.width, spec.height, n));
    INFO(messageOf(written));
    REQUIRE(written.ok());
  }
  const Status finished = writer.finish();
  INFO(messageOf(finished));
  REQUIRE(finished.ok());
}

void encode(const char* format, const VideoSpec& spec, const std::string& path, uint32_t frames = kFrames) {
  av_log_set_level(AV_LOG_ERROR);
  auto writer = makeAvWriter(format, spec, createFile(path));
  INFO(messageOf(writer.status()));
  REQUIRE(writer.ok());
  fill(**writer, spec, frames);
}

// The part of a decoded frame that holds the original.
std::vector<std::byte> cropped(const std::vector<std::byte>& frame, int width, const VideoSpec& spec) {
  std::vector<std::byte> part;
  for (uint32_t y = 0; y < spec.height; ++y) {
    const auto row = frame.begin() + static_cast<ptrdiff_t>(3 * y) * width;
    part.insert(part.end(), row, row + 3 * spec.width);
  }
  return part;
}

double psnr(double mean_squared_error) { return 10 * std::log10(255 * 255 / mean_squared_error); }

}  // namespace

TEST_CASE("mp4: every frame comes back in time, like itself, with its colours tagged", "[media][av]") {
  const auto [width, height, matrix] =
      GENERATE(std::tuple(128u, 96u, "smpte170m"), std::tuple(129u, 97u, "smpte170m"), std::tuple(96u, 720u, "bt709"));
  const TempDir dir;
  const VideoSpec video_spec = spec(width, height);
  encode("mp4", video_spec, dir.file("v.mp4"));
  const DecodedVideo video = decodeVideo(dir.file("v.mp4"));
  CHECK(video.container.find("mp4") != std::string::npos);
  CHECK((video.codec == "h264" || video.codec == "mpeg4"));
  CHECK(video.pixel_format == "yuv420p");
  CHECK(video.matrix == matrix);
  CHECK(video.range == "tv");
  CHECK(video.width == static_cast<int>(width + width % 2));
  CHECK(video.height == static_cast<int>(height + height % 2));
  CHECK(video.rate_numerator == 30000);
  CHECK(video.rate_denominator == 1001);
  REQUIRE(video.frames.size() == kFrames);
  for (uint32_t n = 0; n < kFrames; ++n) {
    INFO("frame " << n);
    CHECK(video.seconds[n] == Approx(n * 1001.0 / 30000).margin(1e-4));
    const double error =
        meanSquaredError(cropped(video.frames[n], video.width, video_spec), testFrame(width, height, n));
    // A wrong matrix or a wrong range alone makes 32 of it.
    CHECK(psnr(error) > 36);
  }
}

TEST_CASE("mp4: the index stands in front of the pixels, and the same small frames give the same bytes",
          "[media][av]") {
  const TempDir dir;
  encode("mp4", spec(64, 64), dir.file("a.mp4"));
  encode("mp4", spec(64, 64), dir.file("b.mp4"));
  const std::string file = readFile(dir.file("a.mp4"));
  REQUIRE(file.find("moov") != std::string::npos);
  CHECK(file.find("moov") < file.find("mdat"));
  CHECK(file == readFile(dir.file("b.mp4")));
}

TEST_CASE("gif: every frame comes back in time and like itself", "[media][av]") {
  const TempDir dir;
  VideoSpec video_spec = spec(67, 45);
  video_spec.rate = {8, 1};
  encode("gif", video_spec, dir.file("v.gif"));
  const DecodedVideo video = decodeVideo(dir.file("v.gif"));
  CHECK(video.container == "gif");
  CHECK(video.width == 67);
  CHECK(video.height == 45);
  REQUIRE(video.frames.size() == kFrames);
  for (uint32_t n = 0; n < kFrames; ++n) {
    INFO("frame " << n);
    CHECK(video.seconds[n] == Approx(n / 8.0).margin(0.0051));  // hundredths of a second
    CHECK(psnr(meanSquaredError(video.frames[n], testFrame(67, 45, n))) > 32);
  }
  CHECK(readFile(dir.file("v.gif")).find("NETSCAPE2.0") != std::string::npos);  // loops
}

TEST_CASE("png: frames stand in reading order, unchanged", "[media][av]") {
  const TempDir dir;
  const uint32_t expected = GENERATE(12u, 21u);  // all that the sheet has room for, and fewer
  encode("png", spec(40, 30, expected), dir.file("v.png"));
  const DecodedVideo sheet = decodeVideo(dir.file("v.png"));
  CHECK(sheet.codec == "png");
  const SheetLayout layout = layoutSheet(40, 30, expected);
  const uint32_t rows = (kFrames + layout.columns - 1) / layout.columns;
  CHECK(sheet.width == static_cast<int>(40 * layout.columns));
  REQUIRE(sheet.height == static_cast<int>(30 * rows));
  for (uint32_t n = 0; n < rows * layout.columns; ++n) {
    std::vector<std::byte> tile;
    for (uint32_t y = 0; y < 30; ++y) {
      const size_t row = (n / layout.columns * 30 + y) * static_cast<size_t>(sheet.width) + n % layout.columns * 40;
      tile.insert(tile.end(), sheet.frames[0].begin() + static_cast<ptrdiff_t>(3 * row),
                  sheet.frames[0].begin() + static_cast<ptrdiff_t>(3 * (row + 40)));
    }
    CHECK(tile == (n < kFrames ? testFrame(40, 30, n) : std::vector<std::byte>(tile.size(), std::byte{0})));
  }
}

TEST_CASE("png: a sheet fits in 8192 pixels and is about square", "[media][av]") {
  const auto [width, height, frames] =
      GENERATE(std::tuple(832u, 480u, 81u), std::tuple(1u, 1u, 1u), std::tuple(16384u, 16384u, 1u),
               std::tuple(16u, 16384u, 7u), std::tuple(1280u, 720u, 1025u), std::tuple(128u, 128u, 17u));
  const SheetLayout layout = layoutSheet(width, height, frames);
  CHECK(layout.columns * layout.rows >= frames);
  CHECK(layout.columns * (layout.rows - 1) < frames);
  CHECK(layout.columns * layout.tile_width <= 8192);
  CHECK(layout.rows * layout.tile_height <= 8192);
  CHECK(layout.tile_width <= width);
  CHECK(layout.tile_height <= height);
}

TEST_CASE("png: a large sheet is scaled down", "[media][av]") {
  const TempDir dir;
  encode("png", spec(3000, 2000, 9), dir.file("v.png"), 9);
  const SheetLayout layout = layoutSheet(3000, 2000, 9);
  REQUIRE(layout.tile_width < 3000);
  const DecodedVideo sheet = decodeVideo(dir.file("v.png"));
  CHECK(sheet.width == static_cast<int>(layout.columns * layout.tile_width));
  CHECK(sheet.height == static_cast<int>(layout.rows * layout.tile_height));
}

TEST_CASE("y4m: libav reads what the raw writer wrote", "[media][av]") {
  const uint32_t height = GENERATE(48u, 720u);
  const TempDir dir;
  const VideoSpec video_spec = spec(64, height);
  auto writer = makeRawWriter(RawFormat::kY4m, video_spec, createFile(dir.file("v.y4m")), "v");
  REQUIRE(writer.ok());
  fill(**writer, video_spec);
  const DecodedVideo video = decodeVideo(dir.file("v.y4m"));
  CHECK(video.container == "yuv4mpegpipe");
  CHECK(video.pixel_format == "yuv444p");
  CHECK(video.range == "tv");
  CHECK(video.rate_numerator == 30000);
  CHECK(video.rate_denominator == 1001);
  REQUIRE(video.frames.size() == kFrames);
  // The file cannot tag its matrix: libav takes BT.601 for all, so that only the small one comes back like itself.
  const double error = meanSquaredError(video.frames[0], testFrame(64, height, 0));
  CHECK((psnr(error) > 45) == (height < 720));
}

TEST_CASE("av formats: what cannot be written is refused", "[media][av]") {
  const TempDir dir;
  CHECK(checkAvFormats().ok());
  CHECK(absl::IsInvalidArgument(makeAvWriter("avi", spec(8, 8), createFile(dir.file("a"))).status()));
  VideoSpec floats = spec(8, 8);
  floats.format = PixelFormat::kRgbF32;
  CHECK(absl::IsInvalidArgument(makeAvWriter("mp4", floats, createFile(dir.file("b"))).status()));
  auto sheet = makeAvWriter("png", spec(8, 8, 1), createFile(dir.file("c")));
  REQUIRE(sheet.ok());
  REQUIRE((*sheet)->write(testFrame(8, 8, 0)).ok());
  CHECK(absl::IsFailedPrecondition((*sheet)->write(testFrame(8, 8, 1))));
}

TEST_CASE("av formats: a full disk is RESOURCE_EXHAUSTED", "[media][av]") {
  const char* const format = GENERATE("mp4", "gif", "png");
  INFO(format);
  auto writer = makeAvWriter(format, spec(64, 64), UniqueFd(::open("/dev/full", O_RDWR | O_CLOEXEC)));
  Status status = writer.status();
  for (uint32_t n = 0; n < kFrames && status.ok(); ++n)
    status = (*writer)->write(testFrame(64, 64, n));
  if (status.ok()) status = (*writer)->finish();
  INFO(messageOf(status));
  CHECK(absl::IsResourceExhausted(status));
}

}  // namespace latentd::media
