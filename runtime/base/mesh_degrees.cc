#include "runtime/base/mesh_degrees.h"

#include <algorithm>
#include <utility>

namespace latentd {
namespace {

std::string text(const MeshDegrees& degrees, bool all) {
  std::string joined;
  for (const MeshDim dim : kMeshDims) {
    if (!all && degrees.of(dim) <= 1) continue;
    joined += (joined.empty() ? "" : " x ") + std::string(toString(dim)) + " " + std::to_string(degrees.of(dim));
  }
  return joined;
}

}  // namespace

std::string_view toString(MeshDim dim) {
  switch (dim) {
    case MeshDim::kDataParallel:
      return "dp";
    case MeshDim::kCfg:
      return "cfg";
    case MeshDim::kRing:
      return "ring";
    case MeshDim::kUlysses:
      return "ulysses";
    case MeshDim::kSpatial:
      return "spatial";
    case MeshDim::kPipeline:
      return "pp";
    case MeshDim::kTensorParallel:
      return "tp";
  }
  return "?";
}

uint32_t& MeshDegrees::of(MeshDim dim) {
  switch (dim) {
    case MeshDim::kDataParallel:
      return dp;
    case MeshDim::kCfg:
      return cfg;
    case MeshDim::kRing:
      return ring;
    case MeshDim::kUlysses:
      return ulysses;
    case MeshDim::kSpatial:
      return spatial;
    case MeshDim::kPipeline:
      return pp;
    case MeshDim::kTensorParallel:
      break;
  }
  return tp;
}

uint32_t MeshDegrees::of(MeshDim dim) const { return const_cast<MeshDegrees&>(*this).of(dim); }

uint32_t MeshDegrees::product() const {
  uint64_t product = 1;
  for (const MeshDim dim : kMeshDims)
    product = std::min<uint64_t>(product * of(dim), UINT32_MAX);  // two factors below 2^32 do not overflow
  return static_cast<uint32_t>(product);
}

std::string toString(const MeshDegrees& degrees) { return text(degrees, false); }

std::string fullText(const MeshDegrees& degrees) { return text(degrees, true); }

}  // namespace latentd
