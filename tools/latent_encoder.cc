// latent-encoder: empties one frame ring into one mp4, gif or png and exits. latentd starts it with the ring and the
// output file as inherited descriptors; in a process of its own, a codec's crash or a missing library ends one output.
// Exit codes: 0 the file is complete, 1 it is not (the reason is printed, and in the ring), 2 wrong arguments.
#include <signal.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <string>

#include "runtime/base/shm_region.h"
#include "runtime/base/version.h"
#include "runtime/media/av_writer.h"
#include "runtime/media/frame_ring.h"
#include "runtime/media/frame_writer.h"

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavutil/log.h>
}

namespace latentd::media {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Arguments {
  bool check = false;
  int ring_fd = -1;
  int output_fd = -1;
  std::string format;
  std::string fps;
  uint32_t frames = 0;
  uint64_t bytes_max = 0;
};

// A file that grows past its bound fails like a full disk instead of ending the process.
Status limitFileSize(uint64_t bytes_max) {
  if (::signal(SIGXFSZ, SIG_IGN) == SIG_ERR) return errnoStatus(errno, "ignore SIGXFSZ");
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) return errnoStatus(errno, "read the limit of the output's size");
  // The daemon's own limit may be lower, and only root can go above it.
  limit.rlim_cur = limit.rlim_max = std::min<rlim_t>(bytes_max, limit.rlim_max);
  return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 ? absl::OkStatus() : errnoStatus(errno, "limit the output's size");
}

Status encodeInto(FrameRingReader& reader, const Arguments& arguments, UniqueFd output) {
  VideoSpec spec;
  spec.width = reader.geometry().width;
  spec.height = reader.geometry().height;
  spec.format = reader.geometry().format;
  spec.frames = arguments.frames;
  LATENTD_ASSIGN_OR_RETURN(spec.rate, parseFrameRate(arguments.fps));
  LATENTD_RETURN_IF_ERROR(limitFileSize(arguments.bytes_max));
  LATENTD_ASSIGN_OR_RETURN(const std::unique_ptr<FrameWriter> writer,
                           makeAvWriter(arguments.format, spec, std::move(output)));
  return pumpFrames(reader, *writer).status();
}

Status encode(const Arguments& arguments) {
  UniqueFd output(arguments.output_fd);
  LATENTD_ASSIGN_OR_RETURN(ShmRegion ring, ShmRegion::map(UniqueFd(arguments.ring_fd), 1));
  LATENTD_ASSIGN_OR_RETURN(FrameRingReader reader, FrameRingReader::attach(std::move(ring)));
  const Status status = encodeInto(reader, arguments, std::move(output));
  // The supervisor reads the reason there, with its code.
  if (!status.ok()) reader.abort(status);
  return status;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Encodes the frames of a ring; started by latentd.", "latent-encoder");
  app.set_version_flag("--version", "latent-encoder " + std::string(kVersion));
  app.add_flag("--check", arguments.check, "Only say whether this libav can write mp4, gif and png");
  app.add_option("--ring-fd", arguments.ring_fd, "Descriptor of the frame ring");
  app.add_option("--output-fd", arguments.output_fd, "Descriptor of the empty output file, read and write");
  app.add_option("--format", arguments.format, "mp4, gif or png");
  app.add_option("--fps", arguments.fps, "Frames per second as a fraction, such as 30000/1001");
  app.add_option("--frames", arguments.frames, "Frames expected, 1 or more");
  app.add_option("--bytes-max", arguments.bytes_max, "Largest output file, in bytes");
  app.footer("Exit codes: 0 the file is complete; 1 failed (the cause is printed); 2 bad command line.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const bool complete = arguments.ring_fd >= 0 && arguments.output_fd >= 0 && arguments.frames > 0;
  if (!arguments.check && !complete) {
    std::cerr << "latent-encoder: --ring-fd, --output-fd and --frames are needed; latentd gives them\n";
    return kExitUsage;
  }
  av_log_set_level(AV_LOG_ERROR);
  const Status status = arguments.check ? checkAvFormats() : encode(arguments);
  if (status.ok() && arguments.check) {
    std::cout << "libavcodec " << AV_VERSION_MAJOR(avcodec_version()) << "." << AV_VERSION_MINOR(avcodec_version())
              << " writes mp4, gif and png\n";
  }
  if (status.ok()) return kExitOk;
  std::cerr << "latent-encoder: " << status.ToString() << "\n";
  return kExitFailed;
}

}  // namespace
}  // namespace latentd::media

int main(int argc, char** argv) { return latentd::media::run(argc, argv); }
