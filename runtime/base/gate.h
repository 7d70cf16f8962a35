#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace latentd {

// Counts what is in flight, so that a shutdown can refuse what is new and wait for what is not.
// Owner: the object whose life it guards; all passes are gone before it dies. Thread: any.
// States: open -> closed (sticky). Failure: none.
class Gate {
 public:
  // In flight while it lives. Move only.
  class Pass {
   public:
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&& other) noexcept {
      std::swap(gate_, other.gate_);
      return *this;
    }
    ~Pass() {
      if (gate_ != nullptr) gate_->leave();
    }

   private:
    friend class Gate;
    explicit Pass(Gate* gate) : gate_(gate) {}
    Gate* gate_;
  };

  Gate() = default;
  ~Gate() { LATENTD_CHECK(inFlight() == 0, "something is in flight while its gate is destroyed"); }

  // Empty once the gate is closed.
  std::optional<Pass> enter() {
    MutexLock lock(mutex_);
    if (closed_) return std::nullopt;
    ++in_flight_;
    return Pass(this);
  }

  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
  }

  // False if something is still in flight at the deadline.
  bool waitEmpty(Clock::TimePoint deadline) {
    MutexLock lock(mutex_);
    while (in_flight_ > 0) {
      if (!empty_.waitUntil(mutex_, deadline)) return in_flight_ == 0;
    }
    return true;
  }

  uint64_t inFlight() const {
    MutexLock lock(mutex_);
    return in_flight_;
  }

 private:
  void leave() {
    MutexLock lock(mutex_);
    if (--in_flight_ == 0) empty_.notifyAll();  // under the lock: the gate may die right after
  }

  mutable Mutex mutex_;
  CondVar empty_;
  uint64_t in_flight_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace latentd
