#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "tools/ctl/client.h"

namespace latentd::ctl {

struct DrainOptions {
  std::optional<std::chrono::milliseconds> deadline;  // absent: the daemon's configured one
  bool wait = false;                                  // for the daemon's end, telling what it waits for
  std::optional<std::chrono::milliseconds> wait_timeout;
};

struct DumpOptions {
  std::string group;  // empty: every group of several ranks
  uint32_t last = 8;  // operations of each rank
};

ExitCode runTopology(const GlobalOptions& global);
ExitCode runEdges(const GlobalOptions& global);
ExitCode runDump(const GlobalOptions& global, const DumpOptions& options);
ExitCode runDrain(const GlobalOptions& global, const DrainOptions& options);
// Ours even if no daemon answers.
ExitCode runVersion(const GlobalOptions& global);

}  // namespace latentd::ctl
