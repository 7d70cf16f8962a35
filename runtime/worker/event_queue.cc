#include "runtime/worker/event_queue.h"

#include <algorithm>
#include <utility>

#include "runtime/base/message_batch.h"

namespace latentd::worker {

using internal::v1::WorkerEvent;
using internal::v1::WorkerEvents;

EventQueue::EventQueue(Epoch epoch, std::function<void()> on_overflow)
    : epoch_(epoch), on_overflow_(std::move(on_overflow)) {}

bool EventQueue::supersede(WorkerEvent& event) {
  const auto is_heartbeat = [](const WorkerEvent& queued) { return queued.has_heartbeat(); };
  if (event.has_heartbeat()) {
    // Not in the older one's place: its figures are newer than those of what was queued since.
    std::erase_if(events_, is_heartbeat);
    return false;
  }
  if (!event.has_progress()) return false;
  const auto last = std::find_if_not(events_.rbegin(), events_.rend(), is_heartbeat);
  if (last == events_.rend() || !last->has_progress()) return false;
  if (last->progress().job_id() != event.progress().job_id()) return false;
  *last = std::move(event);
  return true;
}

void EventQueue::post(WorkerEvent event) {
  event.set_epoch(epoch_.value);
  bool overflow = false;
  bool first = false;
  {
    MutexLock lock(mutex_);
    if (closed_ || supersede(event)) return;
    overflow = events_.size() >= kEventsMax;
    first = events_.empty();
    if (!overflow) events_.push_back(std::move(event));
  }
  // Not under the lock: the reader may take this thread's core at once, and must not find the lock taken.
  if (first) changed_.notifyAll();
  if (overflow) on_overflow_();
}

WorkerEvents EventQueue::pop(Clock::TimePoint deadline) {
  MutexLock lock(mutex_);
  while (events_.empty() && !closed_) {
    if (!changed_.waitUntil(mutex_, deadline)) break;
  }
  WorkerEvents batch;
  moveBatch(events_, *batch.mutable_events());
  return batch;
}

void EventQueue::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.notifyAll();
}

bool EventQueue::ended() const {
  MutexLock lock(mutex_);
  return closed_ && events_.empty();
}

size_t EventQueue::size() const {
  MutexLock lock(mutex_);
  return events_.size();
}

}  // namespace latentd::worker
