#pragma once

#include <optional>

#include "tools/ctl/client.h"

namespace latentd::ctl {

ExitCode runTopology(const GlobalOptions& global);
ExitCode runEdges(const GlobalOptions& global);
// Without a deadline: the daemon's configured one.
ExitCode runDrain(const GlobalOptions& global, std::optional<double> deadline_seconds);
// Ours even if no daemon answers.
ExitCode runVersion(const GlobalOptions& global);

}  // namespace latentd::ctl
