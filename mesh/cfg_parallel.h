#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "mesh/mesh.h"

namespace latentd::mesh {

// Branches of classifier-free guidance on different ranks. Each rank computes its own and gets all, so that every rank
// combines them by itself and none waits for another's sum.
// Owner: a stage, for one job; the mesh outlives it. Thread: the executor's. Failure: gather() throws
// CommunicationError.
class CfgParallel {
 public:
  // A prompt and its negative; what a model with more branches would need is not here.
  static constexpr size_t kBranches = 2;

  // The degree of cfg is kBranches.
  explicit CfgParallel(Mesh& mesh);

  // Which one this rank computes.
  size_t branch() const { return branch_; }
  // own: [B, ...] of this rank's branch. Returns [kBranches * B, ...], branch by branch.
  at::Tensor gather(const at::Tensor& own);

 private:
  ProcessGroup& group_;
  size_t branch_;
};

}  // namespace latentd::mesh
