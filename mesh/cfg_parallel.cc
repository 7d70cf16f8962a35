#include "mesh/cfg_parallel.h"

#include "mesh/collectives.h"
#include "runtime/base/check.h"

namespace latentd::mesh {

CfgParallel::CfgParallel(Mesh& mesh) : group_(mesh.group(MeshDim::kCfg)), branch_(mesh.coordinate(MeshDim::kCfg)) {
  LATENTD_CHECK(mesh.degree(MeshDim::kCfg) == kBranches, "guidance has two branches: the stage checks the degree");
}

at::Tensor CfgParallel::gather(const at::Tensor& own) { return allGatherCat(group_, own, 0); }

}  // namespace latentd::mesh
