#pragma once

#include "runtime/base/status.h"
#include "runtime/config/topology.h"

namespace latentd::config {

// The reason where the file itself chooses.
inline constexpr const char* kToldCommunication = "the topology says so";

// Chooses what carries the group's collectives, where the file leaves it open, and says why; a pure function of where
// its ranks are. INVALID_ARGUMENT where the file asks for what its devices cannot do.
Status settleCommunication(GroupSpec& group);
// The same of what carries the heads that its ranks scatter.
Status settleUlyssesTransport(GroupSpec& group);

}  // namespace latentd::config
