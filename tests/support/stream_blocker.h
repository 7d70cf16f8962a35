#pragma once

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <memory>

#include "runtime/cuda/stream.h"
#include "tests/support/catch.h"

namespace latentd::testing {

// Keeps a stream from going on until it is let go: slow work of which the test knows when it ends.
class StreamBlocker {
 public:
  explicit StreamBlocker(cuda::StreamView stream) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    write_end_ = ends[1];
    // The host function owns the read end: it may run after this object is gone.
    REQUIRE(cudaLaunchHostFunc(stream.get(), waitForByte, new int(ends[0])) == cudaSuccess);
  }
  StreamBlocker(const StreamBlocker&) = delete;
  StreamBlocker& operator=(const StreamBlocker&) = delete;
  ~StreamBlocker() {
    release();
    ::close(write_end_);
  }
  void release() {
    if (released_) return;
    released_ = true;
    CHECK(::write(write_end_, "x", 1) == 1);
  }

 private:
  static void CUDART_CB waitForByte(void* argument) {
    const std::unique_ptr<int> fd(static_cast<int*>(argument));
    char byte;
    [[maybe_unused]] const ssize_t got = ::read(*fd, &byte, 1);
    ::close(*fd);
  }
  int write_end_ = -1;
  bool released_ = false;
};

}  // namespace latentd::testing
