#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "runtime/base/strong_id.h"

namespace latentd::supervisor {

// Position in Topology::groups and Topology::edges.
using GroupIndex = StrongId<struct GroupIndexTag, uint32_t>;
using EdgeIndex = StrongId<struct EdgeIndexTag, uint32_t>;
// Number of a channel in the daemon's life; 0 is none.
using ChannelId = StrongId<struct ChannelIdTag, uint32_t>;

// A place for a worker process: the process in it changes with the group's epoch.
struct WorkerId {
  GroupIndex group;
  Rank rank;

  friend auto operator<=>(const WorkerId&, const WorkerId&) = default;
};

}  // namespace latentd::supervisor
