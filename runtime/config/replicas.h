#pragma once

#include <vector>

#include "runtime/config/topology.h"

namespace latentd::config {

// Edges that a topology may have when every pair of replicas counts: each is a channel, with sockets in every rank of
// both groups. Sixteen replicas that feed sixteen, four times over.
inline constexpr size_t kEdgesMax = 1024;

// The edges that one between these two groups of the file becomes.
size_t pairsOf(const GroupSpec& from, const GroupSpec& to);

// Makes stages and links of a topology whose groups and edges are those of the file. Replicas (parallel.dp) take the
// place of their group, an edge for each pair of them that of their edge; what has none keeps its name.
// order: indexes of groups, so that every edge goes forward and the last one feeds none.
void expandReplicas(const std::vector<size_t>& order, Topology& topology);

}  // namespace latentd::config
