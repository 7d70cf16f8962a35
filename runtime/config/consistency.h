#pragma once

#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/config/locations.h"
#include "runtime/config/schema.h"
#include "runtime/config/topology.h"

namespace latentd::config {

// Checks what no single key shows (names, references, ranks, ports, bounds against each other) and fills in what
// follows from the whole (threads, model folders, methods, transports, order). INVALID_ARGUMENT or UNIMPLEMENTED with
// the place in the file, both values where two disagree, and what to change.
StatusOr<Topology> complete(Draft draft, const Locations& locations, uint32_t cores);

}  // namespace latentd::config
