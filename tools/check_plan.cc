#include "tools/check_plan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "mesh/device_mesh.h"
#include "runtime/base/check.h"
#include "runtime/config/plan.h"

namespace latentd {
namespace {

using mesh::DeviceMesh;
using mesh::MeshDim;

DeviceMesh meshOf(const config::GroupSpec& group) {
  const config::ParallelDegrees& degrees = group.parallel;
  const auto mesh = DeviceMesh::make({.cfg = degrees.cfg,
                                      .ring = degrees.ring,
                                      .ulysses = degrees.ulysses,
                                      .spatial = degrees.spatial,
                                      .pp = degrees.pp,
                                      .tp = degrees.tp},
                                     group.ranks());
  LATENTD_CHECK(mesh.ok(), "a topology that was loaded has degrees that make its ranks");
  return *mesh;
}

std::string coordinatesText(const DeviceMesh& mesh, Rank rank) {
  std::string text;
  for (const MeshDim dim : mesh::kMeshDims) {
    if (mesh.degree(dim) > 1) text += fmt::format(", {} {}", mesh::toString(dim), mesh.coordinate(rank, dim));
  }
  return text;
}

}  // namespace

std::string checkText(const config::Topology& topology, const config::Findings& findings) {
  std::string text = config::planText(topology, findings);
  for (const config::GroupSpec& group : topology.groups) {
    if (group.ranks() == 1) continue;
    const DeviceMesh mesh = meshOf(group);
    text += fmt::format("mesh of {}, dp -> cfg -> ring -> ulysses -> spatial -> pp -> tp:\n", group.name);
    for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
      text +=
          fmt::format("  rank {} on {}{}\n", rank, toString(group.devices[rank]), coordinatesText(mesh, Rank(rank)));
    }
  }
  return text;
}

std::string checkJson(const config::Topology& topology, const config::Findings& findings) {
  nlohmann::json plan = nlohmann::json::parse(config::planJson(topology, findings));
  for (const config::GroupSpec& group : topology.groups) {
    if (group.ranks() == 1) continue;
    const DeviceMesh mesh = meshOf(group);
    nlohmann::json ranks = nlohmann::json::array();
    for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
      nlohmann::json coordinates = nlohmann::json::object();
      for (const MeshDim dim : mesh::kMeshDims)
        coordinates[std::string(mesh::toString(dim))] = mesh.coordinate(Rank(rank), dim);
      ranks.push_back({{"rank", rank}, {"device", toString(group.devices[rank])}, {"mesh", coordinates}});
    }
    plan["meshes"][group.name] = std::move(ranks);
  }
  return plan.dump(2);
}

}  // namespace latentd
