#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/media/av_handles.h"

namespace latentd::media {

// One video stream: frames into a codec, its packets into a container. Owner: a writer. Thread: one.
// States: open -> finished | failed. Failure: every call says it; a full disk is RESOURCE_EXHAUSTED.
class AvMuxer {
 public:
  struct Options {
    const char* container = nullptr;  // "mp4"
    const AVCodec* codec = nullptr;
    std::function<void(AVCodecContext&)> configure;
    std::vector<std::pair<std::string, std::string>> codec_options;
    std::vector<std::pair<std::string, std::string>> container_options;
  };

  // `file_fd` is open for reading and writing, empty, and stays the caller's; the container may go back in it.
  static StatusOr<AvMuxer> open(const Options& options, int file_fd);
  // Frames carry their time in the codec's time base.
  Status write(const AVFrame& frame) { return encode(&frame); }
  Status finish();

 private:
  AvMuxer(FormatPtr format, CodecPtr codec, PacketPtr packet)
      : format_(std::move(format)), codec_(std::move(codec)), packet_(std::move(packet)) {}
  Status encode(const AVFrame* frame);

  FormatPtr format_;
  CodecPtr codec_;
  PacketPtr packet_;
};

}  // namespace latentd::media
