#include "mesh/head_scatter.h"

#include <utility>

#include <c10/util/Exception.h>

#include "mesh/communication_error.h"
#include "runtime/base/log.h"

namespace latentd::mesh {

void HeadScatter::settle() {
  settled_ = true;
  if (transport_ == ScatterTransport::kC10d) return;
  StatusOr<std::unique_ptr<DirectScatter>> made = DirectScatter::make(group_);
  if (!made.ok()) {
    unshared_ = made.status();
    // The same on all ranks: one tells it.
    if (group_.rank() == 0) {
      getLogger("mesh")->warn("heads are scattered by c10d, as ranks cannot share memory: " + messageOf(unshared_));
    }
    return;
  }
  const MutexLock lock(mutex_);
  direct_ = *std::move(made);
  active_ = direct_.get();
  if (ended_) active_->end();
}

void HeadScatter::begin(at::IntArrayRef share, at::ScalarType dtype) {
  if (group_.size() == 1) return;
  const Status divides = checkHeads(share[2], group_.size());
  TORCH_CHECK_VALUE(divides.ok(), messageOf(divides));
  if (!settled_) settle();
  if (!unshared_.ok() && transport_ == ScatterTransport::kDirect)
    throw CommunicationError(annotate(unshared_, "ranks cannot write into each other's memory"));
  obstacle_ = active_ != nullptr ? active_->begin({share.vec(), dtype}) : unshared_;
}

PendingHeads HeadScatter::submit(HeadTag tag, const at::Tensor& x) {
  if (!direct()) return scatterHeads(group_, x);
  Pending pending = active_->submit(tag, x);
  return PendingHeads(std::move(pending), active_->target(tag), PendingHeads::Layout::kFinal);
}

void HeadScatter::end() noexcept {
  const MutexLock lock(mutex_);
  ended_ = true;
  if (direct_) direct_->end();
}

}  // namespace latentd::mesh
