#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "tests/mesh/ranks.h"

// One set of ranks that goes through many topologies, as a process that loads torch costs more than a mesh.
//
//   TEST_CASE("rank that ...", "[.][child]") {
//     ChildRank rank(ChildRank::Start::kNothing);
//     forEachTopology(rank, [&](const MeshDegrees& degrees) { ... rank.mesh() ... });
//   }
//   TEST_CASE("...") { requireTopologies("rank that ...", {{.ring = 2}, {.tp = 3}}, {.setup = "one line"}); }
namespace latentd::mesh::testing {

// Waits for each topology by itself: a deadline of one is not that of all.
inline void requireTopologies(const std::string& test_case, const std::vector<MeshDegrees>& topologies,
                              RanksOptions options = {}) {
  std::ostringstream text;
  text << options.setup << '\n';
  for (const MeshDegrees& degrees : topologies) {
    options.degrees.dp = std::max(options.degrees.dp, degrees.product());
    for (const MeshDim dim : kMeshDims)
      text << degrees.of(dim) << ' ';
  }
  options.setup = text.str();
  options.recorder = false;                   // it knows one mesh
  options.timeout = std::chrono::minutes(1);  // ranks without a place in a topology wait for the next one
  Ranks ranks(test_case, options);
  for (const MeshDegrees& degrees : topologies) {
    for (size_t rank = 0; rank < degrees.product(); ++rank)
      ranks.next(rank);
  }
  ranks.requireSuccess();
}

// The first line of the setup.
inline std::string firstLine(const ChildRank& rank) { return rank.setup().substr(0, rank.setup().find('\n')); }

// Calls visit() with the mesh of each topology that has a place for this rank.
template <class Visit>
void forEachTopology(ChildRank& rank, Visit visit) {
  std::istringstream text(rank.setup().substr(rank.setup().find('\n')));
  MeshDegrees d;
  while (text >> d.dp >> d.cfg >> d.ring >> d.ulysses >> d.spatial >> d.pp >> d.tp) {
    rank.remake(d);
    if (rank.rank() >= d.product()) continue;
    visit(d);
    rank.send(toString(d));
  }
}

}  // namespace latentd::mesh::testing
