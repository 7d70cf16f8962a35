#pragma once

#include <chrono>

#include "runtime/base/status.h"
#include "runtime/cuda/stream.h"

namespace latentd::cuda {

// Waits on the host until everything that was submitted to the stream is done. DEADLINE_EXCEEDED if it is not by then:
// the process cannot let go of what the work uses and must be recycled. CUDA has no timed wait; a host function at the
// end of the stream makes one.
Status drain(StreamView stream, std::chrono::milliseconds deadline);

}  // namespace latentd::cuda
