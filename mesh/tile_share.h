#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"

namespace latentd::mesh {

// Overlapping tiles of one image dealt out to ranks, and their blend: each rank adds what its tiles give, and how much
// each pixel got, and the sums over all ranks are the image.
// Owner: a stage, for one job; the group outlives it. Thread: the executor's. Failure: sum_() throws
// CommunicationError.
class TileShare {
 public:
  explicit TileShare(ProcessGroup& group) : group_(&group) {}

  // Rounds in which all tiles are done, one a rank.
  int64_t rounds(int64_t tiles) const { return (tiles + group_->size() - 1) / group_->size(); }
  // This rank's tile of a round; there may be fewer in the last one.
  int64_t tile(int64_t round) const { return round * group_->size() + group_->rank(); }
  // Whether this rank hands on the image.
  bool leads() const { return group_->rank() == 0; }
  // Over all ranks, in place and together.
  void sum_(const std::vector<at::Tensor>& tensors) const;

 private:
  ProcessGroup* group_;
};

}  // namespace latentd::mesh
