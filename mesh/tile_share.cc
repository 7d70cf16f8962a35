#include "mesh/tile_share.h"

#include "mesh/collectives.h"

namespace latentd::mesh {

void TileShare::sum_(const std::vector<at::Tensor>& tensors) const { allReduceSum_(*group_, tensors); }

}  // namespace latentd::mesh
