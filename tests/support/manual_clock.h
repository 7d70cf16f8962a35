#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/clock.h"

namespace latentd::testing {

// Time that moves when the test says so. Thread: any.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(kStart + elapsed_ns_.load())); }
  WallTime wallNow() const override { return WallTime(Duration(kWallStart + elapsed_ns_.load())); }
  void advance(Duration duration) { elapsed_ns_ += duration.count(); }
  // Does nothing for a time that has passed.
  void advanceTo(TimePoint time) {
    if (time > now()) advance(time - now());
  }

 private:
  static constexpr int64_t kStart = int64_t{1000} * 1000 * 1000 * 1000;
  static constexpr int64_t kWallStart = int64_t{1767225600} * 1000 * 1000 * 1000;  // 2026-01-01
  std::atomic<int64_t> elapsed_ns_{0};
};

}  // namespace latentd::testing
