#include "mesh/halo.h"

#include <utility>
#include <vector>

#include "runtime/base/check.h"

namespace latentd::mesh {

void HaloExchange::fill(const at::Tensor& padded, int64_t dim, int64_t above, int64_t below) {
  const int64_t rows = padded.size(dim) - above - below;
  LATENTD_CHECK(rows >= above && rows >= below, "a shard has as many rows as its neighbours need of it");
  const int rank = group_->rank();
  const bool has_above = rank > 0;
  const bool has_below = rank + 1 < group_->size();
  const at::Tensor upper_halo = padded.narrow(dim, 0, above);
  const at::Tensor lower_halo = padded.narrow(dim, above + rows, below);
  std::vector<PeerTensor> sends;
  std::vector<PeerTensor> receives;
  const auto send = [&](int peer, Buffer buffer, const at::Tensor& own) {
    sends.push_back({peer, bufferFor(buffer, own).copy_(own)});
  };
  // The rank above lacks this one's first rows below it, the rank below this one's last rows above it.
  if (has_above && below > 0) send(rank - 1, kToAbove, padded.narrow(dim, above, below));
  if (has_below && above > 0) send(rank + 1, kToBelow, padded.narrow(dim, rows, above));
  if (has_above && above > 0) receives.push_back({rank - 1, bufferFor(kFromAbove, upper_halo)});
  if (has_below && below > 0) receives.push_back({rank + 1, bufferFor(kFromBelow, lower_halo)});
  Pending pending;
  if (!sends.empty() || !receives.empty()) pending = group_->exchange(std::move(sends), receives);
  if (!has_above) upper_halo.zero_();
  if (!has_below) lower_halo.zero_();
  pending.wait();
  for (const PeerTensor& received : receives)
    (received.peer < rank ? upper_halo : lower_halo).copy_(received.tensor);
}

uint64_t HaloExchange::bufferBytes() const {
  uint64_t bytes = 0;
  for (const ReusedBuffer& buffer : buffers_)
    bytes += buffer.bytes();
  return bytes;
}

}  // namespace latentd::mesh
