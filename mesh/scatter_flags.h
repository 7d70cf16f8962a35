#pragma once

#include "mesh/process_group.h"
#include "mesh/round_flags.h"
#include "runtime/base/status.h"

namespace latentd::mesh {

// The flags of a group's ranks. The same outcome on all of them. Throws CommunicationError.
StatusOr<RoundFlags> shareFlags(ProcessGroup& group);

}  // namespace latentd::mesh
