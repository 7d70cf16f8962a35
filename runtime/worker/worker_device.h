#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "channel/backend.h"
#include "channel/channel.h"
#include "runtime/base/status.h"
#include "runtime/cuda/stream.h"

namespace latentd::worker {

// The device of one rank: its compute stream, the transports that reach it, and where received tensors are put.
// Owner: the worker; it outlives the edges and the executor. Thread: any, save as said.
// Failure: open() names the device when there is none, or when the driver refuses it.
class WorkerDevice {
 public:
  // `device_timeout` bounds waits of the host for the device (channel/cuda_options.h). Before any other thread asks
  // torch's allocator (runtime/worker/device_memory.h).
  static StatusOr<std::unique_ptr<WorkerDevice>> open(const channel::Device& device,
                                                      std::chrono::milliseconds device_timeout);

  const channel::Device& device() const { return device_; }
  // Makes the compute stream torch's current one; on the thread that runs the stage, before anything else of torch.
  void enter() const;
  // This end of an edge with a transport of runtime/config/transport.h. INVALID_ARGUMENT for one that does not reach
  // this device.
  StatusOr<std::shared_ptr<channel::Backend>> backend(const std::string& transport) const;
  // For the executor's thread. Idle host memory is kept up to `idle_bytes_max`; a device's is torch's to keep.
  std::unique_ptr<channel::Allocator> makeAllocator(uint64_t idle_bytes_max) const;

 private:
  WorkerDevice(const channel::Device& device, std::optional<cuda::StreamView> stream,
               std::chrono::milliseconds device_timeout);

  const channel::Device device_;
  const std::optional<cuda::StreamView> stream_;  // torch's own, from its pool
  std::shared_ptr<channel::Backend> host_;        // on a CPU; owners: these, and the channels
  std::shared_ptr<channel::Backend> cuda_ipc_;
  std::shared_ptr<channel::Backend> pinned_;
};

}  // namespace latentd::worker
