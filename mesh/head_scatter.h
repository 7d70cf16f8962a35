#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "mesh/direct_scatter.h"
#include "mesh/process_group.h"
#include "mesh/ulysses.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace latentd::mesh {

// How the ranks of an ulysses group scatter heads.
enum class ScatterTransport {
  kC10d,              // by the group's all-to-all
  kDirect,            // by direct writes into each other's memory
  kDirectIfPossible,  // else by the group's all-to-all, with a line in the log
};

// The scatters of Q, K and V of one attention after the other, whatever carries them. What can is found out at the
// first round, by all ranks together, and settled for the mesh. A share whose targets some rank has no memory for goes
// by the all-to-all, on all ranks; a round that has begun goes on as it began, or fails.
//
//   begin(share, dtype) -> submit(V), submit(Q), submit(K) -> wait for each
//
// Owner: a Mesh; the process group outlives it. Thread: one; end() from any. States: open -> ended. Failure: throws
// CommunicationError, and c10::Error before anything is sent if the heads do not divide.
class HeadScatter {
 public:
  HeadScatter(ProcessGroup& group, ScatterTransport transport) : group_(group), transport_(transport) {}

  // share: [B, S_local, H, D] of each tensor of the round.
  void begin(at::IntArrayRef share, at::ScalarType dtype) EXCLUDES(mutex_);
  // As scatterHeads(). Results of direct writes are views of memory that the next round writes into.
  PendingHeads submit(HeadTag tag, const at::Tensor& x);

  // Of the last round; and why it went by the all-to-all, where it might have gone directly.
  bool direct() const { return active_ != nullptr && obstacle_.ok(); }
  const Status& obstacle() const { return obstacle_; }
  // Why no round can go directly, once that was found out; OK where one may, and where nobody asked.
  const Status& unshared() const { return unshared_; }

  // Ends what waits in a round, here and on the peers.
  void end() noexcept EXCLUDES(mutex_);

 private:
  // Whether there is a way but the all-to-all. Once.
  void settle() EXCLUDES(mutex_);

  ProcessGroup& group_;
  const ScatterTransport transport_;
  bool settled_ = false;
  DirectScatter* active_ = nullptr;  // the executor's
  Status unshared_;
  Status obstacle_;
  Mutex mutex_;
  bool ended_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<DirectScatter> direct_ GUARDED_BY(mutex_);
};

}  // namespace latentd::mesh
