#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"

namespace latentd::mesh {

// Rows of a sequence over the ranks of a process group: equal shares, the last ones padded with zero rows where the
// length does not divide; a rank may have padding only. All padding is behind the last row of the sequence.
// A value type over a group that outlives it. Thread: that of the group. Failure: gather() throws CommunicationError;
// other lengths than the sequence's throw c10::Error.
class SequenceShard {
 public:
  // length >= 1; each share is a multiple of `multiple`.
  SequenceShard(ProcessGroup& group, int64_t length, int64_t multiple = 1);

  int64_t length() const { return length_; }             // of the whole sequence
  int64_t localLength() const { return local_length_; }  // of each share, padding included
  int64_t paddedLength() const;
  int64_t start(int rank) const { return rank * local_length_; }
  // Rows of rank r that are no padding.
  int64_t validLength(int rank) const;

  // This rank's share along `dim`, padded. A view where nothing is padded.
  at::Tensor slice(const at::Tensor& whole, int64_t dim) const;
  // The whole along `dim` on every rank, without padding.
  at::Tensor gather(const at::Tensor& local, int64_t dim) const;

 private:
  ProcessGroup* group_;
  int64_t length_;
  int64_t local_length_;
};

}  // namespace latentd::mesh
