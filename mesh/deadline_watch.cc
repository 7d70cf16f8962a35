#include "mesh/deadline_watch.h"

#include <pthread.h>

#include <utility>

namespace latentd::mesh {
namespace {

// There is no wait without an end; an idle mesh wakes this rarely.
constexpr std::chrono::minutes kIdle{10};

}  // namespace

DeadlineWatch::DeadlineWatch() : thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "mesh-deadline");
}

DeadlineWatch::~DeadlineWatch() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notifyAll();
  }
  thread_.join();
}

void DeadlineWatch::arm(TimePoint deadline, std::function<void()> late) {
  const MutexLock lock(mutex_);
  deadline_ = deadline;
  late_ = std::move(late);
  if (deadline < wakes_) changed_.notifyAll();
}

void DeadlineWatch::disarm() {
  const MutexLock lock(mutex_);
  deadline_.reset();
}

void DeadlineWatch::run() {
  mutex_.lock();
  while (!stopped_) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (deadline_ && *deadline_ <= now) {
      const std::function<void()> late = std::move(late_);
      deadline_.reset();
      mutex_.unlock();
      late();
      mutex_.lock();
      continue;
    }
    wakes_ = deadline_.value_or(now + kIdle);
    changed_.waitUntil(mutex_, wakes_);
  }
  mutex_.unlock();
}

}  // namespace latentd::mesh
