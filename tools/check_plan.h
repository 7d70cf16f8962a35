#pragma once

#include <string>

#include "runtime/config/findings.h"
#include "runtime/config/topology.h"

namespace latentd {

// What `latentd --check` prints: the plan, and who the ranks of each larger group are to each other.
std::string checkText(const config::Topology& topology, const config::Findings& findings);
std::string checkJson(const config::Topology& topology, const config::Findings& findings);

}  // namespace latentd
