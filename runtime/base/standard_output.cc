#include "runtime/base/standard_output.h"

#include <cerrno>
#include <cstdio>

namespace latentd {

Status flushOutput() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  // Of an earlier failure the cause is forgotten.
  if (errno == 0) return absl::DataLossError("writing to the standard output failed: is the disk full?");
  return errnoStatus(errno, "writing to the standard output");
}

}  // namespace latentd
