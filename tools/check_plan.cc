#include "tools/check_plan.h"

#include <nlohmann/json.hpp>

#include "mesh/device_mesh.h"
#include "runtime/base/check.h"
#include "runtime/config/plan.h"

namespace latentd {
namespace {

using mesh::DeviceMesh;
using mesh::MeshDim;

DeviceMesh meshOf(const config::GroupSpec& group) {
  const auto mesh = DeviceMesh::make(group.parallel, group.ranks());
  LATENTD_CHECK(mesh.ok(), "a topology that was loaded has degrees that make its ranks");
  return *mesh;
}

}  // namespace

std::vector<std::pair<std::string, uint32_t>> placeOf(const config::GroupSpec& group, Rank rank) {
  std::vector<std::pair<std::string, uint32_t>> place;
  for (const mesh::MeshCoordinate& coordinate : meshOf(group).place(rank))
    place.emplace_back(mesh::toString(coordinate.dim), coordinate.index);
  return place;
}

std::string checkText(const config::Topology& topology, const config::Findings& findings) {
  return config::planText(topology, findings, [](const config::GroupSpec& group) {
    const DeviceMesh mesh = meshOf(group);
    std::vector<std::string> places;
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      places.push_back(mesh::toString(mesh.place(Rank(rank))));
    return places;
  });
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
