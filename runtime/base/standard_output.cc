#include "runtime/base/standard_output.h"

#include <cerrno>
#include <cstdio>

namespace latentd {

Status flushOutput() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  // The cause of an earlier failure is forgotten; EIO says no more than that.
  return errnoStatus(errno == 0 ? EIO : errno, "writing to the standard output");
}

}  // namespace latentd
