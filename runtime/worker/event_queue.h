#pragma once

#include <deque>
#include <functional>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/strong_id.h"
#include "runtime/worker/event_sink.h"

namespace latentd::worker {

// Events on their way to the supervisor. It may be stopped (a debugger, SIGSTOP) while work that it dispatched goes
// on, so that posting never waits for it. What is superseded leaves room: of queued heartbeats only the latest stays,
// in its own place, and so of a job's progress reports in a row. Owner: the worker. Thread: post() and close() from
// any, pop() from one. States: open -> closed (what is queued still comes out). Failure: past kEventsMax `on_overflow`
// is called; more than any number of commands in flight can cause, so the supervisor is not coming back.
class EventQueue final : public EventSink {
 public:
  // Each command causes about five events and one an output, and a worker holds at most kCommandsMax commands; the rest
  // is room for edges being opened and retired.
  static constexpr size_t kEventsMax = 16384;

  EventQueue(Epoch epoch, std::function<void()> on_overflow);

  void post(internal::v1::WorkerEvent event) override;
  // What is queued, one batch of it at most; waits while that is nothing. Empty at the deadline, or when the queue is
  // closed and empty (see ended()).
  internal::v1::WorkerEvents pop(Clock::TimePoint deadline);
  void close();
  bool ended() const;
  size_t size() const;

 private:
  // Whether the event took the place of another one.
  bool supersede(internal::v1::WorkerEvent& event) REQUIRES(mutex_);

  const Epoch epoch_;
  const std::function<void()> on_overflow_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<internal::v1::WorkerEvent> events_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace latentd::worker
