#pragma once

#include <string>

#include "tools/plan/search.h"

namespace latentd::plan {

// The topology file of a candidate that is served: what latentd starts from.
std::string topologyYaml(const Request& request, const Candidate& candidate);

}  // namespace latentd::plan
