#include "runtime/media/sheet_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/media/av_error.h"

namespace latentd::media {
namespace {

// Browsers and viewers open this everywhere, and the sheet is at most 192 MiB in memory.
constexpr uint32_t kSheetSideMax = 8192;

Status writeAll(int fd, const uint8_t* bytes, size_t count) {
  while (count > 0) {
    const ssize_t written = ::write(fd, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errnoStatus(errno, "write the output file");
    bytes += written;
    count -= static_cast<size_t>(written);
  }
  return {};
}

StatusOr<CodecPtr> openPng(const AVFrame& sheet) {
  const AVCodec* const encoder = avcodec_find_encoder(AV_CODEC_ID_PNG);
  if (encoder == nullptr) return absl::UnavailableError("this libav has no png encoder");
  CodecPtr codec(avcodec_alloc_context3(encoder));
  if (codec == nullptr) return absl::ResourceExhaustedError("no memory for a codec");
  codec->width = sheet.width;
  codec->height = sheet.height;
  codec->pix_fmt = kRgbFormat;
  codec->time_base = {1, 1};  // one picture
  codec->flags |= AV_CODEC_FLAG_BITEXACT;
  const int opened = avcodec_open2(codec.get(), encoder, nullptr);
  if (opened < 0) return avStatus(opened, "open codec png");
  return codec;
}

}  // namespace

SheetLayout layoutSheet(uint32_t width, uint32_t height, uint32_t frames) {
  SheetLayout layout;
  const double square_columns = std::sqrt(static_cast<double>(frames) * height / width);
  layout.columns = static_cast<uint32_t>(std::clamp<double>(std::ceil(square_columns), 1, frames));
  layout.rows = (frames + layout.columns - 1) / layout.columns;
  const double scale = std::min({1.0, kSheetSideMax / (static_cast<double>(layout.columns) * width),
                                 kSheetSideMax / (static_cast<double>(layout.rows) * height)});
  layout.tile_width = std::max(1u, static_cast<uint32_t>(width * scale));
  layout.tile_height = std::max(1u, static_cast<uint32_t>(height * scale));
  return layout;
}

SheetWriter::SheetWriter(const VideoSpec& spec, const SheetLayout& layout, UniqueFd file, Scaler scaler, FramePtr rgb,
                         FramePtr tile, FramePtr sheet)
    : spec_(spec),
      layout_(layout),
      file_(std::move(file)),
      scaler_(std::move(scaler)),
      rgb_(std::move(rgb)),
      tile_(std::move(tile)),
      sheet_(std::move(sheet)) {}

StatusOr<std::unique_ptr<FrameWriter>> SheetWriter::open(const VideoSpec& spec, UniqueFd file) {
  const SheetLayout layout = layoutSheet(spec.width, spec.height, spec.frames);
  LATENTD_ASSIGN_OR_RETURN(FramePtr rgb,
                           makeFrame(kRgbFormat, static_cast<int>(spec.width), static_cast<int>(spec.height)));
  LATENTD_ASSIGN_OR_RETURN(
      FramePtr tile, makeFrame(kRgbFormat, static_cast<int>(layout.tile_width), static_cast<int>(layout.tile_height)));
  LATENTD_ASSIGN_OR_RETURN(FramePtr sheet, makeFrame(kRgbFormat, static_cast<int>(layout.columns * layout.tile_width),
                                                     static_cast<int>(layout.rows * layout.tile_height)));
  // What no frame covers is black.
  std::memset(sheet->data[0], 0, static_cast<size_t>(sheet->linesize[0]) * static_cast<size_t>(sheet->height));
  LATENTD_ASSIGN_OR_RETURN(Scaler scaler, Scaler::create(*rgb, *tile, matrixFor(spec.height)));
  return std::unique_ptr<FrameWriter>(new SheetWriter(spec, layout, std::move(file), std::move(scaler), std::move(rgb),
                                                      std::move(tile), std::move(sheet)));
}

Status SheetWriter::write(std::span<const std::byte> frame) {
  if (frames_ == spec_.frames) {
    return absl::FailedPreconditionError("a contact sheet of " + std::to_string(spec_.frames) + " frames got one more");
  }
  loadRgb(frame, spec_.width, spec_.height, *rgb_);
  LATENTD_RETURN_IF_ERROR(scaler_.scale(*rgb_, *tile_));
  const size_t row_bytes = size_t{layout_.tile_width} * 3;
  const size_t left = frames_ % layout_.columns * row_bytes;
  const size_t top = size_t{frames_ / layout_.columns} * layout_.tile_height;
  for (size_t y = 0; y < layout_.tile_height; ++y) {
    std::memcpy(sheet_->data[0] + (top + y) * static_cast<size_t>(sheet_->linesize[0]) + left,
                tile_->data[0] + y * static_cast<size_t>(tile_->linesize[0]), row_bytes);
  }
  ++frames_;
  return {};
}

Status SheetWriter::finish() {
  const uint32_t used_rows = (frames_ + layout_.columns - 1) / layout_.columns;
  sheet_->height = static_cast<int>(used_rows * layout_.tile_height);
  LATENTD_ASSIGN_OR_RETURN(const CodecPtr codec, openPng(*sheet_));
  const PacketPtr packet(av_packet_alloc());
  if (packet == nullptr) return absl::ResourceExhaustedError("no memory for a packet");
  const int sent = avcodec_send_frame(codec.get(), sheet_.get());
  if (sent < 0) return avStatus(sent, "encode the contact sheet");
  const int flushed = avcodec_send_frame(codec.get(), nullptr);
  if (flushed < 0) return avStatus(flushed, "encode the contact sheet");
  const int received = avcodec_receive_packet(codec.get(), packet.get());
  if (received < 0) return avStatus(received, "encode the contact sheet");
  return writeAll(file_.get(), packet->data, static_cast<size_t>(packet->size));
}

}  // namespace latentd::media
