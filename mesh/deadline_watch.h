#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/mutex.h"

namespace latentd::mesh {

// Acts when a wait lasts too long: libraries that are told of a deadline close their connections before anybody could
// say why. Sleeps from one deadline to the next, so that a wait costs a lock.
// Owner: a Mesh. Thread: one waits at a time; a thread of its own acts. States: idle <-> armed. Failure: none.
class DeadlineWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // While it lives, `late` may run, once, when the deadline has passed; it may still be running afterwards, so what it
  // uses lives as long as the watch does.
  class Armed {
   public:
    Armed(DeadlineWatch& watch, TimePoint deadline, std::function<void()> late) : watch_(watch) {
      watch_.arm(deadline, std::move(late));
    }
    Armed(const Armed&) = delete;
    Armed& operator=(const Armed&) = delete;
    ~Armed() { watch_.disarm(); }

   private:
    DeadlineWatch& watch_;
  };

  DeadlineWatch();
  ~DeadlineWatch();

 private:
  void arm(TimePoint deadline, std::function<void()> late) EXCLUDES(mutex_);
  void disarm() EXCLUDES(mutex_);
  void run() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> deadline_ GUARDED_BY(mutex_);
  std::function<void()> late_ GUARDED_BY(mutex_);
  TimePoint wakes_ GUARDED_BY(mutex_);  // until when the thread sleeps
  std::thread thread_;                  // declared last: uses the rest
};

}  // namespace latentd::mesh
