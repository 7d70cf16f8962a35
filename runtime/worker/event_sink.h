#pragma once

#include "proto/worker.pb.h"

namespace latentd::worker {

// Where a worker's parts put what the supervisor has to know. Thread: any. Never blocks; events leave in the order of
// post().
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void post(internal::v1::WorkerEvent event) = 0;
};

}  // namespace latentd::worker
