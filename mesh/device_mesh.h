#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/mesh_degrees.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::mesh {

using latentd::kMeshDims;
using latentd::MeshDegrees;
using latentd::MeshDim;
using latentd::toString;

// Where a rank is along one dimension.
struct MeshCoordinate {
  MeshDim dim;
  uint32_t index;
};
// "cfg 0, ulysses 1"; empty without any.
std::string toString(const std::vector<MeshCoordinate>& place);

// Which rank is where in a group, and who shares what with whom. The only place that turns ranks into coordinates:
// models and strategies ask, and never build lists of ranks. A value type; pure arithmetic.
class DeviceMesh {
 public:
  // INVALID_ARGUMENT naming the degrees, their product and `world_size` unless they are equal, and for a degree of 0.
  static StatusOr<DeviceMesh> make(const MeshDegrees& degrees, uint32_t world_size);

  uint32_t worldSize() const { return world_size_; }
  uint32_t degree(MeshDim dim) const { return degrees_[index(dim)]; }
  // Of ring and ulysses together.
  uint32_t sequenceDegree() const { return degree(MeshDim::kRing) * degree(MeshDim::kUlysses); }

  uint32_t coordinate(Rank rank, MeshDim dim) const;
  // Along the dimensions of more than one rank.
  std::vector<MeshCoordinate> place(Rank rank) const;
  // Position along the sequence: ring outside, ulysses inside.
  uint32_t sequenceCoordinate(Rank rank) const;

  // The ranks that differ from `rank` in `dim` alone, itself among them, by coordinate.
  std::vector<Rank> peers(Rank rank, MeshDim dim) const;
  // The same for the whole sequence, by sequenceCoordinate().
  std::vector<Rank> sequencePeers(Rank rank) const;
  // Every set of peers along a dimension, each once, by its first rank: what process groups are made of, on every rank
  // in the same order.
  std::vector<std::vector<Rank>> groups(MeshDim dim) const;

 private:
  static constexpr size_t kDims = kMeshDims.size();
  static constexpr size_t index(MeshDim dim) { return static_cast<size_t>(dim); }

  DeviceMesh(const std::array<uint32_t, kDims>& degrees, uint32_t world_size);

  std::array<uint32_t, kDims> degrees_;
  std::array<uint32_t, kDims> strides_;  // in ranks
  uint32_t world_size_;
};

}  // namespace latentd::mesh
