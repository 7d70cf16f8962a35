#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/halo.h"
#include "mesh/process_group.h"
#include "runtime/base/status.h"

namespace latentd::mesh {

// An image in height shards, one a rank: what a spatial model calls where it would look beyond its own rows.
//
// Rows are counted in the smallest image of the model, that of the latents: a tensor that is sharded has, along its
// sharded dimension, a multiple of this rank's rows, and on every rank the same multiple (pixels: the factor of the
// model; tokens, row after row: the width).
// Owner: a stage, for one job. Thread: the executor's. Failure: what communicates throws CommunicationError.
class SpatialShard {
 public:
  // The rows of each rank where `height` is cut as evenly as it goes: the first ranks take what is left over.
  static std::vector<int64_t> cut(int64_t height, int ranks);

  // INVALID_ARGUMENT, before anything is communicated, unless `height` has a row of `unit` for each rank.
  static Status checkHeight(int64_t height, int64_t unit, int ranks);

  // Every rank says along how many entries its input is `given`, of `whole` in units of `unit` entries a row: all of
  // them have all, and each takes its own part (see slice()), or each has its part already, even or uneven.
  // INVALID_ARGUMENT, on every rank the same, for anything else, and if a rank has no row. `whole` passes
  // checkHeight().
  static StatusOr<SpatialShard> agree(HaloExchange& halo, at::Device device, int64_t given, int64_t whole,
                                      int64_t unit);

  // heights: of every rank's shard, in rank order, none 0.
  SpatialShard(HaloExchange& halo, std::vector<int64_t> heights);

  int rank() const { return halo_->group().rank(); }
  int64_t height() const;  // of the whole
  int64_t localHeight() const { return heights_[rank()]; }
  const std::vector<int64_t>& heights() const { return heights_; }

  // This rank's part, along `dim` with `unit` entries a row, of a tensor that is whole; one that is this part already
  // is returned as it is.
  at::Tensor slice(const at::Tensor& tensor, int64_t dim, int64_t unit) const;
  // As HaloExchange::fill().
  void fillHalo(const at::Tensor& padded, int64_t dim, int64_t above, int64_t below) const {
    halo_->fill(padded, dim, above, below);
  }
  // The whole along `dim`, on every rank, in the memory format of `local`. Shards are padded to the tallest one for the
  // transfer, and trimmed afterwards.
  at::Tensor gather(const at::Tensor& local, int64_t dim) const;
  // The whole on rank `root`, each part sent once as it is; an undefined tensor on the others.
  at::Tensor gatherTo(int root, const at::Tensor& local, int64_t dim) const;

 private:
  // Entries of `local` along `dim` for one row.
  int64_t entriesPerRow(const at::Tensor& local, int64_t dim) const;

  HaloExchange* halo_;
  std::vector<int64_t> heights_;
};

}  // namespace latentd::mesh
