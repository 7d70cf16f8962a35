#pragma once

#include <vector>

#include "runtime/base/status.h"
#include "runtime/config/topology.h"
#include "runtime/supervisor/group_contract.h"

// How videos in token layout cross the edges: nobody configures it, the stages of both sides say it.
namespace latentd::supervisor {

// By link. methods: by place of the stage, each checked. INVALID_ARGUMENT, with the edge's key as its field, where one
// side returns tokens and the other takes none, or where the tensors of one edge would be cut in different ways.
StatusOr<std::vector<config::TokenCuts>> tokenCuts(const config::Topology& topology,
                                                   const std::vector<const Methods*>& methods);

// Whether the stages, now that they are loaded, say what the topology was settled with.
Status checkTokenCuts(const config::Topology& topology, const std::vector<const Methods*>& methods);

}  // namespace latentd::supervisor
