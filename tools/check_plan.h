#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/strong_id.h"
#include "runtime/config/findings.h"
#include "runtime/config/topology.h"

namespace latentd {

// What `latentd --check` prints: the plan, and who the ranks of each larger group are to each other.
std::string checkText(const config::Topology& topology, const config::Findings& findings);
std::string checkJson(const config::Topology& topology, const config::Findings& findings);
// Where a rank of the group is among these, by dimensions of more than one rank; empty for a group of one.
std::vector<std::pair<std::string, uint32_t>> placeOf(const config::GroupSpec& group, Rank rank);

}  // namespace latentd
