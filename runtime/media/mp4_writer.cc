#include "runtime/media/mp4_writer.h"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/media/av_error.h"

namespace latentd::media {
namespace {

constexpr const char* kH264Encoder = "libx264";
// Constant quality: 18 is where x264's users stop seeing a difference; 3 is its like for MPEG-4's quantiser.
constexpr const char* kH264Quality = "18";
constexpr int kMpeg4Quantiser = 3;
// Beside workers that compute: more threads gain little at these sizes, and each holds frames.
constexpr unsigned kThreadsMax = 4;
// Smaller pictures are encoded in a fraction of the time that they take to make, and on one thread x264 gives the same
// bytes for the same frames every time; with more it once did not on a busy machine.
constexpr uint64_t kPixelsOneThread = 640 * 360;

int evenSide(uint32_t side) { return static_cast<int>(side + side % 2); }

void configure(const VideoSpec& spec, AVCodecContext& codec) {
  const bool is_bt709 = matrixFor(spec.height) == ColorMatrix::kBt709;
  codec.width = evenSide(spec.width);
  codec.height = evenSide(spec.height);
  codec.pix_fmt = AV_PIX_FMT_YUV420P;
  codec.time_base = {static_cast<int>(spec.rate.denominator), static_cast<int>(spec.rate.numerator)};
  codec.framerate = {static_cast<int>(spec.rate.numerator), static_cast<int>(spec.rate.denominator)};
  codec.sample_aspect_ratio = {1, 1};
  codec.color_range = AVCOL_RANGE_MPEG;
  codec.colorspace = is_bt709 ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
  // The pixels are sRGB, whose primaries are BT.709's whatever the matrix.
  codec.color_primaries = AVCOL_PRI_BT709;
  codec.color_trc = AVCOL_TRC_IEC61966_2_1;
  const bool small = uint64_t{spec.width} * spec.height <= kPixelsOneThread;
  codec.thread_count = small ? 1 : static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax));
  if (codec.codec_id == AV_CODEC_ID_MPEG4) {
    codec.flags |= AV_CODEC_FLAG_QSCALE;
    codec.global_quality = kMpeg4Quantiser * FF_QP2LAMBDA;
  }
}

}  // namespace

Mp4Writer::Mp4Writer(const VideoSpec& spec, UniqueFd file, AvMuxer muxer, Scaler scaler, FramePtr rgb, FramePtr yuv)
    : spec_(spec),
      file_(std::move(file)),
      muxer_(std::move(muxer)),
      scaler_(std::move(scaler)),
      rgb_(std::move(rgb)),
      yuv_(std::move(yuv)) {}

const AVCodec* Mp4Writer::findCodec() {
  const AVCodec* const h264 = avcodec_find_encoder_by_name(kH264Encoder);
  return h264 != nullptr ? h264 : avcodec_find_encoder(AV_CODEC_ID_MPEG4);
}

StatusOr<std::unique_ptr<FrameWriter>> Mp4Writer::open(const VideoSpec& spec, UniqueFd file) {
  AvMuxer::Options options;
  options.container = "mp4";
  options.codec = findCodec();
  if (options.codec == nullptr) return absl::UnavailableError("this libav has no H.264 or MPEG-4 encoder");
  options.configure = [&spec](AVCodecContext& codec) { configure(spec, codec); };
  if (options.codec->name == std::string_view(kH264Encoder)) options.codec_options = {{"crf", kH264Quality}};
  options.container_options = {{"movflags", "+faststart"}};
  LATENTD_ASSIGN_OR_RETURN(AvMuxer muxer, AvMuxer::open(options, file.get()));
  const int width = evenSide(spec.width);
  const int height = evenSide(spec.height);
  LATENTD_ASSIGN_OR_RETURN(FramePtr rgb, makeFrame(kRgbFormat, width, height));
  LATENTD_ASSIGN_OR_RETURN(FramePtr yuv, makeFrame(AV_PIX_FMT_YUV420P, width, height));
  LATENTD_ASSIGN_OR_RETURN(Scaler scaler, Scaler::create(*rgb, *yuv, matrixFor(spec.height)));
  return std::unique_ptr<FrameWriter>(
      new Mp4Writer(spec, std::move(file), std::move(muxer), std::move(scaler), std::move(rgb), std::move(yuv)));
}

Status Mp4Writer::write(std::span<const std::byte> frame) {
  loadRgb(frame, spec_.width, spec_.height, *rgb_);
  // The codec may still read the frame that it was given last.
  const int writable = av_frame_make_writable(yuv_.get());
  if (writable < 0) return avStatus(writable, "memory for a frame");
  LATENTD_RETURN_IF_ERROR(scaler_.scale(*rgb_, *yuv_));
  yuv_->pts = frames_++;
  return muxer_.write(*yuv_);
}

}  // namespace latentd::media
