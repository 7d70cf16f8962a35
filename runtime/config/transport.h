#pragma once

#include <string>

#include "runtime/config/topology.h"

namespace latentd::config {

struct TransportChoice {
  Transport transport = Transport::kShm;
  std::string reason;  // "both groups are on the CPU of this host"
};

// How tensors go from one group to the other; a pure function of where the groups are.
TransportChoice selectTransport(const GroupSpec& from, const GroupSpec& to);

}  // namespace latentd::config
