#pragma once

#include <vector>

#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/supervisor/group_contract.h"

// How the ranks of both sides of an edge divide what crosses it: videos in token layout as the stages say, which nobody
// configures; plain tensors along the edge's shard dimensions, which the stages have to know.
namespace latentd::supervisor {

// By link. methods: by place of the stage, each checked. INVALID_ARGUMENT, with the edge's key as its field, where one
// side returns tokens and the other takes none, where the tensors of one edge would be cut in different ways, or where
// the edge has a shard dimension along which the stage takes or returns no slices, or has one beside tokens.
StatusOr<std::vector<config::TokenCuts>> tokenCuts(const config::Topology& topology,
                                                   const std::vector<const Methods*>& methods);

// Whether the stages, now that they are loaded, say what the topology was settled with.
Status checkTokenCuts(const config::Topology& topology, const std::vector<const Methods*>& methods);

}  // namespace latentd::supervisor
