#pragma once

#include "runtime/base/status.h"
#include "runtime/config/locations.h"
#include "runtime/config/schema.h"

namespace latentd::config {

// Resolves draft.edges into topology.edges, and fills in each group's method, each edge's transport, the order and the
// sink. Refuses references to groups that do not exist, groups with two methods or none, edges given twice, cycles,
// and more than one group that feeds no other. Group names are unique already.
Status connect(Draft& draft, const Locations& locations);

}  // namespace latentd::config
