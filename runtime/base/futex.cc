#include "runtime/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace latentd {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free,
              "the kernel compares a plain 32-bit word");

}  // namespace

FutexWake futexWait(const std::atomic<uint32_t>& word, uint32_t expected, Clock::TimePoint deadline) {
  const auto since_boot = deadline.time_since_epoch();
  if (since_boot.count() <= 0) return FutexWake::kTimedOut;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
  timespec absolute{};
  absolute.tv_sec = seconds.count();
  absolute.tv_nsec = (since_boot - seconds).count();
  // The BITSET form takes an absolute CLOCK_MONOTONIC time, which is what steady_clock reads.
  const long result =
      ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &absolute, nullptr, FUTEX_BITSET_MATCH_ANY);
  return result != 0 && errno == ETIMEDOUT ? FutexWake::kTimedOut : FutexWake::kChanged;
}

void futexWakeAll(const std::atomic<uint32_t>& word) { ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX); }

}  // namespace latentd
