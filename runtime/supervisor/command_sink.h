#pragma once

#include <cstdint>

#include "proto/worker.pb.h"
#include "runtime/base/status.h"
#include "runtime/supervisor/worker_id.h"

namespace latentd::supervisor {

// The way to the workers. Thread: the supervisor's loop. Never calls back from inside.
class CommandSink {
 public:
  virtual ~CommandSink() = default;
  // In order for each worker. A worker that cannot take it is lost, and that is reported as any other loss.
  virtual void send(WorkerId worker, internal::v1::WorkerCommand command) = 0;
  // Hands over a descriptor, which a command names by `id`. Either may go first.
  virtual Status sendDescriptor(WorkerId worker, uint64_t id, int fd) = 0;
};

}  // namespace latentd::supervisor
