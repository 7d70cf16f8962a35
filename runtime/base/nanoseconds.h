#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/base/clock.h"

namespace latentd {

// A point of the clock that all processes of a host share (SteadyClock is CLOCK_MONOTONIC), for messages between them.
inline int64_t toNanoseconds(Clock::TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace latentd
