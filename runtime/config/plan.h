#pragma once

#include <string>

#include "runtime/config/findings.h"
#include "runtime/config/topology.h"

namespace latentd::config {

// What `latentd --check` and /config tell: groups, ranks, devices, threads, edges with their transport and its reason,
// addresses, what memory is to be expected, and what bounds jobs. Looks at the sizes of model files.
std::string planText(const Topology& topology, const Findings& findings);

// The same as one JSON object.
std::string planJson(const Topology& topology, const Findings& findings);

}  // namespace latentd::config
