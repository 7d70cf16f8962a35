#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"
#include "runtime/base/status.h"

// Ulysses (arXiv 2309.14509): attention over a sequence that is sharded over ranks, each computing some of the heads.
// Submission is apart from waiting, so that Q, K and V are under way together.
namespace latentd::mesh {

// A transposition under way. Move-only. Thread: that of its submission. Failure: throws CommunicationError.
class PendingHeads {
 public:
  // How the blocks of the ranks lie.
  enum class Layout {
    kFinal,     // there was nothing to send
    kSequence,  // [size, S_local, B, H / size, D]
    kHeads,     // [size, B, S_local, H / size, D]
  };
  PendingHeads(Pending pending, at::Tensor received, Layout layout);

  // The result. Once.
  at::Tensor wait();

 private:
  Pending pending_;
  at::Tensor received_;
  Layout layout_;
};

// INVALID_ARGUMENT naming the heads and the degree unless it divides them.
Status checkHeads(int64_t heads, int64_t degree);

// [B, S_local, H, D], any strides -> [B, S_local * size, H / size, D]: the whole sequence in rank order, this rank's
// heads. Copies once, to send; the result is a view of what was received. Throws c10::Error before anything is sent if
// the heads do not divide.
PendingHeads scatterHeads(ProcessGroup& group, const at::Tensor& x);
// The inverse: [B, S, H / size, D], any strides -> [B, S / size, H, D], contiguous. Throws c10::Error before anything
// is sent if the sequence does not divide.
PendingHeads gatherHeads(ProcessGroup& group, const at::Tensor& x);

}  // namespace latentd::mesh
