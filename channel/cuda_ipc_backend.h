#pragma once

#include <memory>

#include "channel/backend.h"
#include "channel/cuda_options.h"

namespace latentd::channel {

// Between processes of one host, in device memory: pools are plain device allocations that are exported once, slots
// carry a ready event of the producer and a completion event of each consumer rank. Messages, descriptors and the
// control block are those of shm. Tensors of the host may be published too: they are copied to the device.
std::shared_ptr<Backend> makeCudaIpcBackend(const CudaOptions& options);

// The device's end of an edge whose other end is a CPU with the shm backend: pools are sealed memfds, pinned here, so
// that copies run at link speed. The host waits for the device before a publication or an acknowledgement, because a
// CPU has no stream that could. Where memory of another process cannot be pinned for reading, the driver stages the
// copy.
std::shared_ptr<Backend> makePinnedBackend(const CudaOptions& options);

}  // namespace latentd::channel
