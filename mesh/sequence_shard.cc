#include "mesh/sequence_shard.h"

#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "mesh/collectives.h"

namespace latentd::mesh {

SequenceShard::SequenceShard(ProcessGroup& group, int64_t length, int64_t multiple) : group_(&group), length_(length) {
  TORCH_CHECK_VALUE(length >= 1 && multiple >= 1, "a sequence of ", length, " rows in multiples of ", multiple,
                    ": both are at least 1");
  const int64_t unit = multiple * group.size();
  local_length_ = (length + unit - 1) / unit * multiple;
}

int64_t SequenceShard::paddedLength() const { return local_length_ * group_->size(); }

int64_t SequenceShard::validLength(int rank) const {
  return std::clamp<int64_t>(length_ - start(rank), 0, local_length_);
}

at::Tensor SequenceShard::slice(const at::Tensor& whole, int64_t dim) const {
  TORCH_CHECK_VALUE(whole.size(dim) == length_, "to be sharded: ", whole.size(dim), " rows along dimension ", dim,
                    ", expected the whole sequence of ", length_);
  const int64_t valid = validLength(group_->rank());
  const at::Tensor share = whole.narrow(dim, std::min(start(group_->rank()), length_), valid);
  if (valid == local_length_) return share;
  // Begin and end of each dimension, the last one first.
  std::vector<int64_t> padding(2 * static_cast<size_t>(whole.dim()), 0);
  const int64_t from_last = whole.dim() - 1 - (dim < 0 ? dim + whole.dim() : dim);
  padding[2 * static_cast<size_t>(from_last) + 1] = local_length_ - valid;
  return at::constant_pad_nd(share, padding);
}

at::Tensor SequenceShard::gather(const at::Tensor& local, int64_t dim) const {
  TORCH_CHECK_VALUE(local.size(dim) == local_length_, "to be gathered: ", local.size(dim), " rows along dimension ",
                    dim, ", expected a share of ", local_length_);
  return allGatherCat(*group_, local, dim).narrow(dim, 0, length_);
}

}  // namespace latentd::mesh
