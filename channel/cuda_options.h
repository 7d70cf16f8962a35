#pragma once

#include <chrono>

#include "runtime/cuda/stream.h"

namespace latentd::channel {

// How a process's backends use its device. A value type; the stream outlives every backend.
struct CudaOptions {
  // Where the stage computes: sources are read and targets written in its order, so that neither publish() nor
  // receive() waits for the device.
  cuda::StreamView stream;
  // Longest wait of the host for the device, where there is no event that a peer could wait for (one-shot buffers, a
  // CPU on the other side), and of a destructor that must not free what the device still uses.
  std::chrono::milliseconds device_timeout{30000};
};

}  // namespace latentd::channel
