#pragma once

#include "runtime/base/status.h"
#include "runtime/config/locations.h"
#include "runtime/config/schema.h"

namespace latentd::config {

// Resolves draft.edges into topology.edges, and fills in each group's method, each edge's transport, stages and links;
// replicas become groups. Refuses references to groups that do not exist, groups with two methods or none, edges given
// twice, cycles, more than one group that feeds no other, and more pairs of replicas than there may be edges. Group
// names are unique and ranks make whole replicas already.
Status connect(Draft& draft, const Locations& locations);

}  // namespace latentd::config
