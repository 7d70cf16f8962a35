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
  // Totals: the older ones, which what is queued behind them counts on, may as well be the newer.
  if (event.has_heartbeat() || event.has_figures()) {
    const auto queued = std::find_if(events_.begin(), events_.end(),
                                     [&](const auto& e) { return e.event_case() == event.event_case(); });
    if (queued == events_.end()) return false;
    *queued = std::move(event);
    return true;
  }
  if (!event.has_progress() || events_.empty() || !events_.back().has_progress()) return false;
  if (events_.back().progress().job_id() != event.progress().job_id()) return false;
  events_.back() = std::move(event);
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
