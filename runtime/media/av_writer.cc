#include "runtime/media/av_writer.h"

#include <utility>

#include "runtime/media/av_handles.h"
#include "runtime/media/gif_writer.h"
#include "runtime/media/mp4_writer.h"
#include "runtime/media/sheet_writer.h"

namespace latentd::media {

StatusOr<std::unique_ptr<FrameWriter>> makeAvWriter(std::string_view format, const VideoSpec& spec, UniqueFd file) {
  if (spec.format != PixelFormat::kRgb8) {
    return absl::InvalidArgumentError("float pixels: only npy holds floats");
  }
  if (format == "mp4") return Mp4Writer::open(spec, std::move(file));
  if (format == "gif") return GifWriter::open(spec, std::move(file));
  if (format == "png") return SheetWriter::open(spec, std::move(file));
  return absl::InvalidArgumentError("format '" + std::string(format) + "' is none of mp4, gif, png");
}

Status checkAvFormats() {
  const auto missing = [](const char* what) {
    return absl::UnavailableError(std::string("this libav has no ") + what);
  };
  if (av_guess_format("mp4", nullptr, nullptr) == nullptr) return missing("mp4 container");
  if (av_guess_format("gif", nullptr, nullptr) == nullptr) return missing("gif container");
  if (Mp4Writer::findCodec() == nullptr) return missing("H.264 or MPEG-4 encoder");
  if (avcodec_find_encoder(AV_CODEC_ID_GIF) == nullptr) return missing("gif encoder");
  if (avcodec_find_encoder(AV_CODEC_ID_PNG) == nullptr) return missing("png encoder");
  return {};
}

}  // namespace latentd::media
