#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/clock.h"

namespace latentd {

// Sleeping on a 32-bit word of memory that several processes map. A waiter loads the word, checks its condition, then
// waits for the word to differ from what it loaded; whoever changes the condition changes the word, then wakes.
// Works on any mapping of the same page, and a peer's death or garbage in the word costs at most the deadline.
enum class FutexWake {
  kChanged,  // woken, or the word differed already, or a signal came: check the condition again
  kTimedOut,
};

FutexWake futexWait(const std::atomic<uint32_t>& word, uint32_t expected, Clock::TimePoint deadline);
// Wakes every waiter of every process.
void futexWakeAll(const std::atomic<uint32_t>& word);

}  // namespace latentd
