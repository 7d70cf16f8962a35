#pragma once

#include <chrono>
#include <optional>

#include "tools/ctl/client.h"

namespace latentd::ctl {

struct DrainOptions {
  std::optional<std::chrono::milliseconds> deadline;  // absent: the daemon's configured one
  bool wait = false;                                  // for the daemon's end, telling what it waits for
  std::optional<std::chrono::milliseconds> wait_timeout;
};

ExitCode runTopology(const GlobalOptions& global);
ExitCode runEdges(const GlobalOptions& global);
ExitCode runDrain(const GlobalOptions& global, const DrainOptions& options);
// Ours even if no daemon answers.
ExitCode runVersion(const GlobalOptions& global);

}  // namespace latentd::ctl
