#include "runtime/media/gif_writer.h"

#include <cstring>
#include <utility>

#include "runtime/media/av_error.h"

namespace latentd::media {
namespace {

constexpr uint8_t kOpaque = 255;
// libimagequant's fastest. Of a 128 x 128 ramp, its default of 4 takes 5 times as long for three quarters of the mean
// squared error, and at 832 x 480 the errors are equal.
constexpr int kQuantiserSpeed = 10;
// Full dithering makes flat areas of a video flicker from palette to palette.
constexpr float kDitheringLevel = 0.5f;

struct FreeImage {
  void operator()(liq_image* image) const { liq_image_destroy(image); }
};
struct FreeResult {
  void operator()(liq_result* result) const { liq_result_destroy(result); }
};

Status quantiserStatus(liq_error error, std::string_view what) {
  if (error == LIQ_OK) return {};
  const std::string message = std::string(what) + ": libimagequant's error " + std::to_string(error);
  return error == LIQ_OUT_OF_MEMORY ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

// libav wants 32-bit ARGB numbers; unused entries repeat black, opaque.
void copyPalette(const liq_palette& palette, AVFrame& frame) {
  auto* const entries = reinterpret_cast<uint32_t*>(frame.data[1]);
  for (size_t i = 0; i < AVPALETTE_COUNT; ++i) {
    const liq_color color = i < palette.count ? palette.entries[i] : liq_color{0, 0, 0, kOpaque};
    entries[i] = uint32_t{kOpaque} << 24 | uint32_t{color.r} << 16 | uint32_t{color.g} << 8 | color.b;
  }
}

}  // namespace

GifWriter::GifWriter(const VideoSpec& spec, UniqueFd file, AvMuxer muxer, Quantiser quantiser, FramePtr indexed)
    : spec_(spec),
      file_(std::move(file)),
      muxer_(std::move(muxer)),
      quantiser_(std::move(quantiser)),
      rgba_(size_t{spec.width} * spec.height),
      indexed_(std::move(indexed)) {}

StatusOr<std::unique_ptr<FrameWriter>> GifWriter::open(const VideoSpec& spec, UniqueFd file) {
  AvMuxer::Options options;
  options.container = "gif";
  options.codec = avcodec_find_encoder(AV_CODEC_ID_GIF);
  if (options.codec == nullptr) return absl::UnavailableError("this libav has no gif encoder");
  options.configure = [&spec](AVCodecContext& codec) {
    codec.width = static_cast<int>(spec.width);
    codec.height = static_cast<int>(spec.height);
    codec.pix_fmt = AV_PIX_FMT_PAL8;
    codec.time_base = {static_cast<int>(spec.rate.denominator), static_cast<int>(spec.rate.numerator)};
    codec.framerate = {static_cast<int>(spec.rate.numerator), static_cast<int>(spec.rate.denominator)};
  };
  options.container_options = {{"loop", "0"}};
  LATENTD_ASSIGN_OR_RETURN(AvMuxer muxer, AvMuxer::open(options, file.get()));
  LATENTD_ASSIGN_OR_RETURN(FramePtr indexed,
                           makeFrame(AV_PIX_FMT_PAL8, static_cast<int>(spec.width), static_cast<int>(spec.height)));
  Quantiser quantiser(liq_attr_create());
  if (quantiser == nullptr) return absl::UnavailableError("libimagequant does not run on this processor");
  LATENTD_RETURN_IF_ERROR(quantiserStatus(liq_set_speed(quantiser.get(), kQuantiserSpeed), "speed"));
  return std::unique_ptr<FrameWriter>(
      new GifWriter(spec, std::move(file), std::move(muxer), std::move(quantiser), std::move(indexed)));
}

Status GifWriter::quantise(std::span<const std::byte> frame) {
  const auto* const rgb = reinterpret_cast<const uint8_t*>(frame.data());
  for (size_t i = 0; i < rgba_.size(); ++i)
    rgba_[i] = {rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2], kOpaque};
  constexpr double kGammaOfSrgb = 0;  // its name for the default
  const std::unique_ptr<liq_image, FreeImage> image(
      liq_image_create_rgba(quantiser_.get(), rgba_.data(), indexed_->width, indexed_->height, kGammaOfSrgb));
  if (image == nullptr) return absl::ResourceExhaustedError("no memory to choose a frame's colours");
  liq_result* quantised = nullptr;
  LATENTD_RETURN_IF_ERROR(
      quantiserStatus(liq_image_quantize(image.get(), quantiser_.get(), &quantised), "choose a frame's colours"));
  const std::unique_ptr<liq_result, FreeResult> result(quantised);
  LATENTD_RETURN_IF_ERROR(quantiserStatus(liq_set_dithering_level(result.get(), kDitheringLevel), "dithering"));
  std::vector<unsigned char*> rows(static_cast<size_t>(indexed_->height));
  for (int y = 0; y < indexed_->height; ++y) {
    rows[static_cast<size_t>(y)] = indexed_->data[0] + static_cast<ptrdiff_t>(y) * indexed_->linesize[0];
  }
  LATENTD_RETURN_IF_ERROR(
      quantiserStatus(liq_write_remapped_image_rows(result.get(), image.get(), rows.data()), "map a frame's colours"));
  copyPalette(*liq_get_palette(result.get()), *indexed_);
  return {};
}

Status GifWriter::write(std::span<const std::byte> frame) {
  // The codec keeps the frame that it was given last.
  const int writable = av_frame_make_writable(indexed_.get());
  if (writable < 0) return avStatus(writable, "memory for a frame");
  LATENTD_RETURN_IF_ERROR(quantise(frame));
  indexed_->pts = frames_++;
  return muxer_.write(*indexed_);
}

}  // namespace latentd::media
