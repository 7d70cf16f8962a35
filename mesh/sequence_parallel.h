#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

#include "mesh/head_scatter.h"
#include "mesh/mesh.h"
#include "mesh/ring.h"
#include "mesh/sequence_shard.h"
#include "mesh/ulysses.h"

namespace latentd::mesh {

// Self-attention of a sequence that is sharded over ring x ulysses: what a model calls where it would call attention.
// Rank order of the sequence: ring outside, ulysses inside (DeviceMesh::sequenceCoordinate). Ulysses transposes first,
// so that the ring turns with whole rows of some heads.
//
//   begin(values) -> attend(queries, keys)     values move while queries and keys are still computed
//
// Owner: a stage, for one job; the mesh outlives it. Thread: the executor's. Failure: both throw CommunicationError,
// and begin() c10::Error before it communicates where the heads do not divide (checkHeads(), at load).
class SequenceParallel {
 public:
  // length: tokens of the whole sequence. attention: what a rank computes where it has all keys of a head.
  SequenceParallel(Mesh& mesh, int64_t length, RingVariant variant, Attention attention);

  // Of the whole sequence over all ranks of ring x ulysses.
  const SequenceShard& shard() const { return shard_; }

  // An attention whose values are under way. Move-only. Outlived by the strategy; over before the next one begins.
  class Begun {
   public:
    // q, k: as the values. The result has their shape. Once.
    at::Tensor attend(const at::Tensor& q, const at::Tensor& k);

   private:
    friend class SequenceParallel;
    Begun(SequenceParallel& parallel, PendingHeads values) : parallel_(parallel), values_(std::move(values)) {}

    SequenceParallel& parallel_;
    PendingHeads values_;
  };
  // v: [B, S_local, H, D], any strides with D innermost; unchanged until it was attended to.
  Begun begin(const at::Tensor& v);

 private:
  at::Tensor attendRing(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

  ProcessGroup& ulysses_;
  HeadScatter& scatter_;
  ProcessGroup& ring_;
  RingVariant variant_;
  Attention attention_;
  SequenceShard shard_;
  SequenceShard ring_shard_;  // over the ring alone: each share is those of a whole ulysses group
  RingBuffers buffers_;
};

}  // namespace latentd::mesh
