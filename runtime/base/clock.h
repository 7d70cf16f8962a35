#pragma once

#include <chrono>

namespace latentd {

// Time as an argument, so that tests need no waiting. Thread: safe to call from any.
class Clock {
 public:
  using Duration = std::chrono::nanoseconds;
  // Monotonic, for deadlines and intervals.
  using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
  // Civil time, for what users see.
  using WallTime = std::chrono::time_point<std::chrono::system_clock, Duration>;

  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual WallTime wallNow() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  WallTime wallNow() const override { return std::chrono::system_clock::now(); }
};

}  // namespace latentd
