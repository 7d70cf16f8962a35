#include "tests/runtime/media/av_decode.h"

#include <memory>

#include "runtime/media/av_handles.h"
#include "tests/support/catch.h"

extern "C" {
#include <libavutil/pixdesc.h>
}

namespace latentd::media {
namespace {

struct CloseInput {
  void operator()(AVFormatContext* context) const { avformat_close_input(&context); }
};
using InputPtr = std::unique_ptr<AVFormatContext, CloseInput>;

std::vector<std::byte> toRgb(const AVFrame& frame) {
  std::vector<std::byte> rgb(static_cast<size_t>(frame.width) * static_cast<size_t>(frame.height) * 3);
  const ScalerPtr scaler(
      sws_getContext(frame.width, frame.height, static_cast<AVPixelFormat>(frame.format), frame.width, frame.height,
                     AV_PIX_FMT_RGB24, SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, nullptr, nullptr, nullptr));
  REQUIRE(scaler != nullptr);
  const int matrix = frame.colorspace == AVCOL_SPC_BT709 ? SWS_CS_ITU709 : SWS_CS_ITU601;
  sws_setColorspaceDetails(scaler.get(), sws_getCoefficients(matrix), frame.color_range == AVCOL_RANGE_JPEG,
                           sws_getCoefficients(matrix), 1, 0, 1 << 16, 1 << 16);
  // libswscale may write past the end of a row's last vector.
  std::vector<uint8_t> padded(rgb.size() + 4096);
  uint8_t* const planes[] = {padded.data()};
  const int strides[] = {frame.width * 3};
  REQUIRE(sws_scale(scaler.get(), frame.data, frame.linesize, 0, frame.height, planes, strides) == frame.height);
  std::copy_n(reinterpret_cast<const std::byte*>(padded.data()), rgb.size(), rgb.begin());
  return rgb;
}

void receiveFrames(AVCodecContext& codec, const AVStream& stream, DecodedVideo& video) {
  const FramePtr frame(av_frame_alloc());
  while (avcodec_receive_frame(&codec, frame.get()) == 0) {
    if (video.frames.empty()) {
      video.pixel_format = av_get_pix_fmt_name(static_cast<AVPixelFormat>(frame->format));
      video.matrix = av_color_space_name(frame->colorspace);
      video.range = av_color_range_name(frame->color_range);
    }
    video.frames.push_back(toRgb(*frame));
    video.seconds.push_back(static_cast<double>(frame->best_effort_timestamp) * av_q2d(stream.time_base));
  }
}

}  // namespace

DecodedVideo decodeVideo(const std::string& file) {
  AVFormatContext* opened = nullptr;
  INFO(file);
  REQUIRE(avformat_open_input(&opened, file.c_str(), nullptr, nullptr) == 0);
  const InputPtr input(opened);
  REQUIRE(avformat_find_stream_info(input.get(), nullptr) >= 0);
  REQUIRE(input->nb_streams == 1);
  const AVStream& stream = *input->streams[0];
  const AVCodec* const decoder = avcodec_find_decoder(stream.codecpar->codec_id);
  REQUIRE(decoder != nullptr);
  const CodecPtr codec(avcodec_alloc_context3(decoder));
  REQUIRE(avcodec_parameters_to_context(codec.get(), stream.codecpar) == 0);
  REQUIRE(avcodec_open2(codec.get(), decoder, nullptr) == 0);
  DecodedVideo video;
  video.container = input->iformat->name;
  video.codec = decoder->name;
  video.width = stream.codecpar->width;
  video.height = stream.codecpar->height;
  video.rate_numerator = stream.avg_frame_rate.num;
  video.rate_denominator = stream.avg_frame_rate.den;
  const PacketPtr packet(av_packet_alloc());
  while (av_read_frame(input.get(), packet.get()) == 0) {
    REQUIRE(avcodec_send_packet(codec.get(), packet.get()) == 0);
    av_packet_unref(packet.get());
    receiveFrames(*codec, stream, video);
  }
  avcodec_send_packet(codec.get(), nullptr);
  receiveFrames(*codec, stream, video);
  return video;
}

}  // namespace latentd::media
