#pragma once

#include <chrono>
#include <string_view>

#include "runtime/base/status.h"

namespace latentd::ctl {

// "500ms", "90s", "10m", "1h", "7d": durations as the topology file has them. INVALID_ARGUMENT says what was got and
// what is expected; a number without a unit is told which one it lacks.
StatusOr<std::chrono::milliseconds> parseDuration(std::string_view text, std::chrono::milliseconds least,
                                                  std::chrono::milliseconds most);

}  // namespace latentd::ctl
