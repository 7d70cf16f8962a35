#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"
#include "mesh/reused_buffer.h"

namespace latentd::mesh {

// What a rank's height shard needs of its neighbours' before a spatial convolution: the rows next to its own. All four
// transfers of a layer (with the rank above and the rank below, each way) are one batch, out of and into buffers that
// one layer after another reuses.
// Owner: a stage, for its whole life. Thread: the executor's. Failure: fill() throws CommunicationError.
class HaloExchange {
 public:
  // Shards lie in rank order, rank 0 at the top. The group outlives this.
  explicit HaloExchange(ProcessGroup& group) : group_(&group) {}

  // `padded` has this rank's rows along `dim`, `above` more before them and `below` more behind, which this fills: with
  // the nearest rows of the neighbours, and with zeros at the top and bottom of the image. Every rank calls it with the
  // same `dim`, `above` and `below`, and with shapes that are equal but for `dim`; every rank has at least as many rows
  // of its own as either halo.
  void fill(const at::Tensor& padded, int64_t dim, int64_t above, int64_t below);

  ProcessGroup& group() const { return *group_; }
  // Of the buffers: they grow to what the largest layer needs and stay.
  uint64_t bufferBytes() const;

 private:
  enum Buffer { kToAbove, kToBelow, kFromAbove, kFromBelow, kBuffers };
  at::Tensor bufferFor(Buffer buffer, const at::Tensor& rows) {
    return buffers_[buffer].view(rows.sizes(), rows.options());
  }

  ProcessGroup* group_;
  std::array<ReusedBuffer, kBuffers> buffers_;
};

}  // namespace latentd::mesh
