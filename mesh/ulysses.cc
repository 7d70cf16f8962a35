#include "mesh/ulysses.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>

namespace latentd::mesh {
namespace {

// Block r of `blocks` goes to rank r.
PendingHeads submit(ProcessGroup& group, const at::Tensor& blocks, PendingHeads::Layout layout) {
  at::Tensor sent = blocks.contiguous();
  at::Tensor received = at::empty_like(sent);
  Pending pending = group.allToAll(received, std::move(sent));
  return PendingHeads(std::move(pending), std::move(received), layout);
}

}  // namespace

PendingHeads::PendingHeads(Pending pending, at::Tensor received, Layout layout)
    : pending_(std::move(pending)), received_(std::move(received)), layout_(layout) {}

at::Tensor PendingHeads::wait() {
  pending_.wait();
  const at::Tensor received = std::move(received_);
  switch (layout_) {
    case Layout::kFinal:
      break;
    case Layout::kSequence:
      return received.flatten(0, 1).transpose(0, 1);
    case Layout::kHeads:
      return received.permute({1, 2, 0, 3, 4}).flatten(2, 3);
  }
  return received;
}

Status checkHeads(int64_t heads, int64_t degree) {
  if (degree >= 1 && heads % degree == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(std::to_string(heads) + " attention heads do not divide over " +
                                    std::to_string(degree) + " ranks; expected a degree that divides " +
                                    std::to_string(heads));
}

PendingHeads scatterHeads(ProcessGroup& group, const at::Tensor& x) {
  if (group.size() == 1) return PendingHeads(Pending(), x, PendingHeads::Layout::kFinal);
  const Status status = checkHeads(x.size(2), group.size());
  TORCH_CHECK_VALUE(status.ok(), messageOf(status));
  // [size, S_local, B, h, D]: with the sequence outside the batch, blocks of all ranks are one sequence as they lie.
  return submit(group, x.unflatten(2, {group.size(), -1}).permute({2, 1, 0, 3, 4}), PendingHeads::Layout::kSequence);
}

PendingHeads gatherHeads(ProcessGroup& group, const at::Tensor& x) {
  if (group.size() == 1) return PendingHeads(Pending(), x, PendingHeads::Layout::kFinal);
  TORCH_CHECK_VALUE(x.size(1) % group.size() == 0, "a sequence of ", x.size(1), " rows does not divide over ",
                    group.size(), " ranks");
  // [size, B, S_local, h, D]: a view where B is 1 and x lies as attention leaves it.
  return submit(group, x.unflatten(1, {group.size(), -1}).transpose(0, 1), PendingHeads::Layout::kHeads);
}

}  // namespace latentd::mesh
