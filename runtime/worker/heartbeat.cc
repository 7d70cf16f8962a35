#include "runtime/worker/heartbeat.h"

#include <utility>

#include "runtime/worker/process_memory.h"

namespace latentd::worker {

Heartbeat::Heartbeat(EventLoop& loop, Clock::Duration interval, Edges& edges, StageExecutor& executor,
                     EventSink& events)
    : loop_(loop), interval_(interval), edges_(edges), executor_(executor), events_(events) {
  loop_.runAndWait([this] { beat(); });
}

Heartbeat::~Heartbeat() {
  loop_.runAndWait([this] { loop_.cancelTimer(timer_); });
}

void Heartbeat::beat() {
  if (!executor_.stalled()) edges_.noteProgress();
  executor_.endStopped();
  internal::v1::WorkerEvent event;
  event.mutable_heartbeat()->set_resident_bytes(residentBytes());
  edges_.fillStats(*event.mutable_heartbeat());
  events_.post(std::move(event));
  timer_ = loop_.addTimer(loop_.clock().now() + interval_, [this] { beat(); });
}

}  // namespace latentd::worker
