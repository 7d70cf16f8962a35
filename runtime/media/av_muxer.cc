#include "runtime/media/av_muxer.h"

#include "runtime/media/av_error.h"

namespace latentd::media {
namespace {

// An AVDictionary for the length of a call.
class Dictionary {
 public:
  explicit Dictionary(const std::vector<std::pair<std::string, std::string>>& options) {
    for (const auto& [name, value] : options)
      av_dict_set(&dictionary_, name.c_str(), value.c_str(), 0);
  }
  Dictionary(const Dictionary&) = delete;
  Dictionary& operator=(const Dictionary&) = delete;
  ~Dictionary() { av_dict_free(&dictionary_); }

  AVDictionary** get() { return &dictionary_; }
  // libav leaves in the dictionary what nobody took.
  Status allTaken() const {
    const AVDictionaryEntry* const left = av_dict_get(dictionary_, "", nullptr, AV_DICT_IGNORE_SUFFIX);
    if (left == nullptr) return {};
    return absl::InternalError(std::string("this libav knows no option ") + left->key);
  }

 private:
  AVDictionary* dictionary_ = nullptr;
};

StatusOr<CodecPtr> openCodec(const AvMuxer::Options& options, bool global_header) {
  CodecPtr codec(avcodec_alloc_context3(options.codec));
  if (codec == nullptr) return absl::ResourceExhaustedError("no memory for a codec");
  // The same frames give the same bytes, whatever the version of libav writes of itself.
  codec->flags |= AV_CODEC_FLAG_BITEXACT;
  if (global_header) codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  options.configure(*codec);
  Dictionary dictionary(options.codec_options);
  const int opened = avcodec_open2(codec.get(), options.codec, dictionary.get());
  if (opened < 0) return avStatus(opened, std::string("open codec ") + options.codec->name);
  LATENTD_RETURN_IF_ERROR(dictionary.allTaken());
  return codec;
}

}  // namespace

StatusOr<AvMuxer> AvMuxer::open(const Options& options, int file_fd) {
  AVFormatContext* allocated = nullptr;
  // By name: the container opens the file a second time to move its index to the front.
  const std::string file = "/proc/self/fd/" + std::to_string(file_fd);
  const int found = avformat_alloc_output_context2(&allocated, nullptr, options.container, file.c_str());
  if (found < 0) return avStatus(found, std::string("container ") + options.container);
  FormatPtr format(allocated);
  format->flags |= AVFMT_FLAG_BITEXACT;
  AVStream* const stream = avformat_new_stream(format.get(), options.codec);
  PacketPtr packet(av_packet_alloc());
  if (stream == nullptr || packet == nullptr) return absl::ResourceExhaustedError("no memory for a stream");
  LATENTD_ASSIGN_OR_RETURN(CodecPtr codec, openCodec(options, (format->oformat->flags & AVFMT_GLOBALHEADER) != 0));
  stream->time_base = codec->time_base;
  stream->avg_frame_rate = codec->framerate;
  const int copied = avcodec_parameters_from_context(stream->codecpar, codec.get());
  if (copied < 0) return avStatus(copied, "stream parameters");
  const int opened = avio_open(&format->pb, file.c_str(), AVIO_FLAG_READ_WRITE);
  if (opened < 0) return avStatus(opened, "open the output file");
  Dictionary dictionary(options.container_options);
  const int started = avformat_write_header(format.get(), dictionary.get());
  if (started < 0) return avStatus(started, "write the container's header");
  LATENTD_RETURN_IF_ERROR(dictionary.allTaken());
  return AvMuxer(std::move(format), std::move(codec), std::move(packet));
}

Status AvMuxer::encode(const AVFrame* frame) {
  const int sent = avcodec_send_frame(codec_.get(), frame);
  if (sent < 0) return avStatus(sent, "encode a frame");
  while (true) {
    const int received = avcodec_receive_packet(codec_.get(), packet_.get());
    if (received == AVERROR(EAGAIN) || received == AVERROR_EOF) break;
    if (received < 0) return avStatus(received, "encode a frame");
    // One tick of the codec's time base is one frame's duration unless the codec knows better.
    if (packet_->duration == 0) packet_->duration = 1;
    av_packet_rescale_ts(packet_.get(), codec_->time_base, format_->streams[0]->time_base);
    packet_->stream_index = 0;
    const int written = av_interleaved_write_frame(format_.get(), packet_.get());  // takes what the packet holds
    if (written < 0) return avStatus(written, "write the output file");
  }
  // Writes are buffered: an error may show here only.
  if (format_->pb->error < 0) return avStatus(format_->pb->error, "write the output file");
  return {};
}

Status AvMuxer::finish() {
  LATENTD_RETURN_IF_ERROR(encode(nullptr));
  const int ended = av_write_trailer(format_.get());
  if (ended < 0) return avStatus(ended, "complete the output file");
  const int write_error = format_->pb->error;
  const int closed = avio_closep(&format_->pb);
  if (write_error < 0) return avStatus(write_error, "write the output file");
  return closed < 0 ? avStatus(closed, "close the output file") : absl::OkStatus();
}

}  // namespace latentd::media
