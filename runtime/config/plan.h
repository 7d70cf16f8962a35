#pragma once

#include <string>

#include "runtime/config/topology.h"

namespace latentd::config {

// What `latentd --check` prints: groups, ranks, devices, threads, edges with their transport and its reason, addresses,
// and what memory the disk lets expect. Looks at the sizes of model files.
std::string planText(const Topology& topology);

// The same as one JSON object.
std::string planJson(const Topology& topology);

}  // namespace latentd::config
