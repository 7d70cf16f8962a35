#include "runtime/media/raw_writer.h"

#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/media/color.h"

namespace latentd::media {
namespace {

std::span<const std::byte> bytesOf(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// An append-only file with errors that name it.
class OutputFile {
 public:
  OutputFile(UniqueFd file, std::string name) : file_(std::move(file)), name_(std::move(name)) {}

  Status append(std::span<const std::byte> bytes) {
    LATENTD_RETURN_IF_ERROR(writeAt(bytes, offset_));
    offset_ += bytes.size();
    return {};
  }

  Status writeAt(std::span<const std::byte> bytes, uint64_t offset) {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errnoStatus(errno, "write " + name_ + " at byte " + std::to_string(offset));
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset += static_cast<uint64_t>(written);
    }
    return {};
  }

 private:
  UniqueFd file_;
  std::string name_;
  uint64_t offset_ = 0;
};

// ---- rgb24 --------------------------------------------------------------------------------------------------
class Rgb24Writer final : public FrameWriter {
 public:
  explicit Rgb24Writer(OutputFile file) : file_(std::move(file)) {}
  Status write(std::span<const std::byte> frame) override { return file_.append(frame); }
  Status finish() override { return {}; }

 private:
  OutputFile file_;
};

// ---- npy ----------------------------------------------------------------------------------------------------
// Enough for any shape, and a multiple of 64 as the format asks, so that the data is aligned when mapped.
constexpr size_t kNpyHeaderBytes = 128;
constexpr std::string_view kNpyMagic("\x93NUMPY\x01\x00", 8);  // version 1.0

std::string npyHeader(const VideoSpec& spec, uint32_t frames) {
  const char* const type = spec.format == PixelFormat::kRgbF32 ? "<f4" : "|u1";
  std::string dictionary = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': (" +
                           std::to_string(frames) + ", " + std::to_string(spec.height) + ", " +
                           std::to_string(spec.width) + ", 3), }";
  const size_t dictionary_bytes = kNpyHeaderBytes - kNpyMagic.size() - 2;
  LATENTD_CHECK(dictionary.size() < dictionary_bytes, "four numbers of 32 bits fit the header");
  dictionary.resize(dictionary_bytes - 1, ' ');
  std::string header(kNpyMagic);
  header += static_cast<char>(dictionary_bytes % 256);
  header += static_cast<char>(dictionary_bytes / 256);
  return header + dictionary + '\n';
}

class NpyWriter final : public FrameWriter {
 public:
  NpyWriter(const VideoSpec& spec, OutputFile file) : spec_(spec), file_(std::move(file)) {}

  Status write(std::span<const std::byte> frame) override {
    if (frames_ == 0) LATENTD_RETURN_IF_ERROR(file_.append(bytesOf(npyHeader(spec_, spec_.frames))));
    ++frames_;
    return file_.append(frame);
  }

  // The header came first and says what was expected.
  Status finish() override {
    if (frames_ == spec_.frames) return {};
    return file_.writeAt(bytesOf(npyHeader(spec_, frames_)), 0);
  }

 private:
  const VideoSpec spec_;
  OutputFile file_;
  uint32_t frames_ = 0;
};

// ---- y4m ----------------------------------------------------------------------------------------------------
constexpr std::string_view kY4mFrameHeader = "FRAME\n";

// Progressive, square pixels. The format has no tag for the matrix; the range is one that players know.
std::string y4mHeader(const VideoSpec& spec) {
  return "YUV4MPEG2 W" + std::to_string(spec.width) + " H" + std::to_string(spec.height) + " F" +
         std::to_string(spec.rate.numerator) + ":" + std::to_string(spec.rate.denominator) +
         " Ip A1:1 C444 XCOLORRANGE=LIMITED\n";
}

class Y4mWriter final : public FrameWriter {
 public:
  Y4mWriter(const VideoSpec& spec, OutputFile file)
      : header_(y4mHeader(spec)), matrix_(matrixFor(spec.height)), file_(std::move(file)) {}

  Status write(std::span<const std::byte> frame) override {
    if (planes_.empty()) LATENTD_RETURN_IF_ERROR(file_.append(bytesOf(header_)));
    planes_.resize(frame.size());
    rgbToYuv444(frame, matrix_, planes_);
    LATENTD_RETURN_IF_ERROR(file_.append(bytesOf(kY4mFrameHeader)));
    return file_.append(planes_);
  }

  Status finish() override { return {}; }

 private:
  const std::string header_;
  const ColorMatrix matrix_;
  OutputFile file_;
  std::vector<std::byte> planes_;
};

uint64_t pixelBytes(const VideoSpec& spec) {
  return frameBytes(FrameGeometry{spec.width, spec.height, spec.format, 1});
}

}  // namespace

uint64_t rawFileBytes(RawFormat format, const VideoSpec& spec) {
  switch (format) {
    case RawFormat::kNpy:
      return kNpyHeaderBytes + spec.frames * pixelBytes(spec);
    case RawFormat::kY4m:
      return y4mHeader(spec).size() + spec.frames * (kY4mFrameHeader.size() + pixelBytes(spec));
    case RawFormat::kRgb24:
      return spec.frames * pixelBytes(spec);
  }
  return 0;
}

StatusOr<std::unique_ptr<FrameWriter>> makeRawWriter(RawFormat format, const VideoSpec& spec, UniqueFd file,
                                                     std::string name) {
  if (spec.format != PixelFormat::kRgb8 && format != RawFormat::kNpy) {
    return absl::InvalidArgumentError("float_pixels: only NPY holds floats; ask for NPY, or for 8-bit pixels");
  }
  OutputFile output(std::move(file), std::move(name));
  switch (format) {
    case RawFormat::kNpy:
      return std::make_unique<NpyWriter>(spec, std::move(output));
    case RawFormat::kY4m:
      return std::make_unique<Y4mWriter>(spec, std::move(output));
    case RawFormat::kRgb24:
      return std::make_unique<Rgb24Writer>(std::move(output));
  }
  return absl::InternalError("unknown raw format");
}

}  // namespace latentd::media
