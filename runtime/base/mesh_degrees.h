#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace latentd {

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

// Degree of each dimension; 1 switches it off. A value type.
struct MeshDegrees {
  uint32_t dp = 1;  // replicas; 1 once these are groups of their own
  uint32_t cfg = 1;
  uint32_t ring = 1;
  uint32_t ulysses = 1;
  uint32_t spatial = 1;
  uint32_t pp = 1;
  uint32_t tp = 1;

  uint32_t of(MeshDim dim) const;
  uint32_t& of(MeshDim dim);
  // The ranks that they make; UINT32_MAX, which no group has, for as many or more.
  uint32_t product() const;
};
// "cfg 2 x ulysses 2": those above 1; empty without any.
std::string toString(const MeshDegrees& degrees);
// "dp 1 x cfg 2 x ring 1 x ...": all.
std::string fullText(const MeshDegrees& degrees);

// Of a message that has their fields, but dp: replicas are groups of their own there.
template <class Message>
MeshDegrees degreesOf(const Message& message) {
  return {.cfg = message.cfg(),
          .ring = message.ring(),
          .ulysses = message.ulysses(),
          .spatial = message.spatial(),
          .pp = message.pp(),
          .tp = message.tp()};
}

}  // namespace latentd
