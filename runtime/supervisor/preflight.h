#pragma once

#include <string>

#include "runtime/base/child_spawner.h"
#include "runtime/base/status.h"
#include "runtime/config/findings.h"
#include "runtime/config/topology.h"

namespace latentd::supervisor {

// Asks the worker program what its stages say of the topology, reading configurations and headers, no weights, and
// checks it against the edges, the limits and the defaults. Waits at most deadlines.load for the program, which is one
// process for all groups. INVALID_ARGUMENT for what the file says wrong: a line "FILE:LINE: KEY: ..." for each problem;
// other codes if the program does not answer, CANCELLED when interrupt_fd (-1: none) is readable before it does.
StatusOr<config::Findings> preflight(const config::Topology& topology, ChildSpawner& spawner,
                                     const std::string& worker_binary, int interrupt_fd);

// Whether this machine has the devices that the groups name: a topology for another one may be checked, not started.
// INVALID_ARGUMENT "FILE:LINE: groups[1].devices: ...", a line for each group that lacks one.
Status checkDevices(const config::Topology& topology, const config::Findings& findings);

}  // namespace latentd::supervisor
