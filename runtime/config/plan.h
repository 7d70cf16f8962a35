#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/config/findings.h"
#include "runtime/config/topology.h"

namespace latentd::config {

// The place of each rank in the mesh of a group of several: "cfg 0, ulysses 1", by rank. This folder knows no meshes.
using PlacesOf = std::function<std::vector<std::string>(const GroupSpec& group)>;

// What `latentd --check` and /config tell: groups, ranks, devices, threads, edges with their transport and its reason,
// addresses, what memory is to be expected, and what bounds jobs. Looks at the sizes of model files.
std::string planText(const Topology& topology, const Findings& findings, const PlacesOf& places_of);

// The same as one JSON object.
std::string planJson(const Topology& topology, const Findings& findings);

}  // namespace latentd::config
