#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace latentd::testing {

// No machine that is of any use takes longer for what is done at once; what is not done at all takes far longer.
inline constexpr std::chrono::milliseconds kSlackMin{10'000};

// What is promised within this time is promised of processors that are free: here, with as much longer as others keep
// this machine busy. The load of a minute knows nothing of the last seconds, hence never less than the least.
inline std::chrono::milliseconds withSlack(std::chrono::milliseconds promised) {
  double load = 0;
  if (::getloadavg(&load, 1) != 1) load = 0;
  const double busy = 2 * load / static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return std::max(kSlackMin, std::chrono::duration_cast<std::chrono::milliseconds>(promised * std::max(1.0, busy)));
}

}  // namespace latentd::testing
