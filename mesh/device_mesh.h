#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::mesh {

// Dimensions of a group's mesh, outermost first: neighbours along the last one have adjacent ranks, and those exchange
// most. SP is the two dimensions ring and ulysses together; a VAE, which has no sequence, is cut into height shards
// along spatial instead.
enum class MeshDim {
  kDataParallel,
  kCfg,
  kRing,
  kUlysses,
  kSpatial,
  kPipeline,
  kTensorParallel,
};
inline constexpr std::array kMeshDims{
    MeshDim::kDataParallel, MeshDim::kCfg,      MeshDim::kRing,           MeshDim::kUlysses,
    MeshDim::kSpatial,      MeshDim::kPipeline, MeshDim::kTensorParallel,
};
std::string_view toString(MeshDim dim);  // "dp", "cfg", "ring", "ulysses", "spatial", "pp", "tp"

// Degree of each dimension; 1 switches it off.
struct MeshDegrees {
  uint32_t dp = 1;
  uint32_t cfg = 1;
  uint32_t ring = 1;
  uint32_t ulysses = 1;
  uint32_t spatial = 1;
  uint32_t pp = 1;
  uint32_t tp = 1;

  uint32_t of(MeshDim dim) const;
};

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
