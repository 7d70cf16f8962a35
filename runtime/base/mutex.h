#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// Defines GUARDED_BY in older releases: included first, so that there is one definition whatever a file includes.
#include <absl/base/thread_annotations.h>

// Clang's thread-safety annotations; nothing under other compilers.
#if defined(__clang__)
#define LATENTD_TSA(x) __attribute__((x))
#else
#define LATENTD_TSA(x)
#endif
#ifndef GUARDED_BY
#define GUARDED_BY(x) LATENTD_TSA(guarded_by(x))
#endif
#define REQUIRES(...) LATENTD_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) LATENTD_TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) LATENTD_TSA(acquire_capability(__VA_ARGS__))
#define RELEASE(...) LATENTD_TSA(release_capability(__VA_ARGS__))

namespace latentd {

// std::mutex with annotations: TSan reports false races on Debian's absl::Mutex. Locks do not nest.
class LATENTD_TSA(capability("mutex")) Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class LATENTD_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable of Mutex. The caller holds the mutex and re-checks its condition in a loop; there is no wait
// without a deadline.
class CondVar {
 public:
  // False when the deadline passed.
  template <class TimePoint>
  bool waitUntil(Mutex& mutex, TimePoint deadline) REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    const bool woken = condition_.wait_until(held, deadline) == std::cv_status::no_timeout;
    held.release();
    return woken;
  }
  void notifyOne() { condition_.notify_one(); }
  void notifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace latentd
