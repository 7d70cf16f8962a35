#include "mesh/device_mesh.h"

#include "runtime/base/check.h"

namespace latentd::mesh {

std::string toString(const std::vector<MeshCoordinate>& place) {
  std::string text;
  for (const MeshCoordinate& coordinate : place)
    text += (text.empty() ? "" : ", ") + std::string(toString(coordinate.dim)) + " " + std::to_string(coordinate.index);
  return text;
}

DeviceMesh::DeviceMesh(const std::array<uint32_t, kDims>& degrees, uint32_t world_size)
    : degrees_(degrees), strides_{}, world_size_(world_size) {
  uint32_t stride = 1;
  for (size_t d = kDims; d-- > 0;) {
    strides_[d] = stride;
    stride *= degrees_[d];
  }
}

StatusOr<DeviceMesh> DeviceMesh::make(const MeshDegrees& degrees, uint32_t world_size) {
  std::array<uint32_t, kDims> all{};
  for (const MeshDim dim : kMeshDims) {
    all[index(dim)] = degrees.of(dim);
    if (degrees.of(dim) != 0) continue;
    return absl::InvalidArgumentError("degree " + std::string(toString(dim)) + " is 0: 1 switches a dimension off");
  }
  if (degrees.product() != world_size || world_size == UINT32_MAX) {
    return absl::InvalidArgumentError("the degrees " + fullText(degrees) + " make " +
                                      std::to_string(degrees.product()) + " ranks, the group has " +
                                      std::to_string(world_size));
  }
  return DeviceMesh(all, world_size);
}

uint32_t DeviceMesh::coordinate(Rank rank, MeshDim dim) const {
  LATENTD_CHECK(rank.value < world_size_, "a rank beyond the group");
  return rank.value / strides_[index(dim)] % degree(dim);
}

std::vector<MeshCoordinate> DeviceMesh::place(Rank rank) const {
  std::vector<MeshCoordinate> place;
  for (const MeshDim dim : kMeshDims) {
    if (degree(dim) > 1) place.push_back({dim, coordinate(rank, dim)});
  }
  return place;
}

uint32_t DeviceMesh::sequenceCoordinate(Rank rank) const {
  return coordinate(rank, MeshDim::kRing) * degree(MeshDim::kUlysses) + coordinate(rank, MeshDim::kUlysses);
}

std::vector<Rank> DeviceMesh::peers(Rank rank, MeshDim dim) const {
  const uint32_t stride = strides_[index(dim)];
  const uint32_t first = rank.value - coordinate(rank, dim) * stride;
  std::vector<Rank> ranks;
  for (uint32_t i = 0; i < degree(dim); ++i)
    ranks.emplace_back(first + i * stride);
  return ranks;
}

std::vector<Rank> DeviceMesh::sequencePeers(Rank rank) const {
  std::vector<Rank> ranks;
  for (const Rank along_ring : peers(rank, MeshDim::kRing)) {
    for (const Rank peer : peers(along_ring, MeshDim::kUlysses))
      ranks.push_back(peer);
  }
  // peers() of a rank in the middle starts at coordinate 0 of both, so this is the order of sequenceCoordinate().
  return ranks;
}

std::vector<std::vector<Rank>> DeviceMesh::groups(MeshDim dim) const {
  std::vector<std::vector<Rank>> all;
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    if (coordinate(Rank(rank), dim) == 0) all.push_back(peers(Rank(rank), dim));
  }
  return all;
}

}  // namespace latentd::mesh
