#include "runtime/media/av_error.h"

#include <array>
#include <string>

extern "C" {
#include <libavutil/error.h>
}

namespace latentd::media {

Status avStatus(int error, std::string_view what) {
  // libav's own codes are four-letter tags, far from any errno.
  constexpr int kErrnoMax = 4096;
  if (error < 0 && error > -kErrnoMax) return errnoStatus(AVUNERROR(error), what);
  std::array<char, AV_ERROR_MAX_STRING_SIZE> text{};
  av_strerror(error, text.data(), text.size());
  return absl::InternalError(std::string(what) + ": " + text.data());
}

}  // namespace latentd::media
