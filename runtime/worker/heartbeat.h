#pragma once

#include <optional>
#include <string>

#include "runtime/base/event_loop.h"
#include "runtime/worker/edges.h"
#include "runtime/worker/event_sink.h"
#include "runtime/worker/memory_sampler.h"
#include "runtime/worker/stage_executor.h"

namespace latentd::worker {

// Tells the supervisor at an interval that the process lives, with its memory and its edges' counters, and tells peers
// of its channels that it moves, unless its stage has stalled. A beat waits for no device.
// Owner: the worker. Thread: beats on the loop; construction and destruction on one other thread. Failure: none.
class Heartbeat {
 public:
  // device: as in Load.
  Heartbeat(EventLoop& loop, Clock::Duration interval, std::string device, Edges& edges, StageExecutor& executor,
            EventSink& events);
  ~Heartbeat();

 private:
  void beat();

  EventLoop& loop_;
  const Clock::Duration interval_;
  const std::string device_;
  Edges& edges_;
  StageExecutor& executor_;
  EventSink& events_;
  EventLoop::TimerId timer_;
  std::optional<MemorySampler> device_memory_;  // none: the device is the CPU
};

}  // namespace latentd::worker
