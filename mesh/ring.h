#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "mesh/process_group.h"
#include "mesh/reused_buffer.h"
#include "mesh/sequence_shard.h"

// Ring attention (arXiv 2310.01889): queries stay, keys and values go round, partial results are merged by their
// log-sum-exp.
namespace latentd::mesh {

// Attention in one process: query [B, S, H, D], key and value [B, any, H, D] -> [B, S, H, D].
using Attention = std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)>;

enum class RingVariant {
  kExchange,   // K and V in one transfer to the neighbour, the next block under way during the current one
  kAllGather,  // K and V of all ranks on every rank, and one attention: simpler, and needs the memory
};

// For the block at hand and the one to come, ring after ring. Owner: whoever calls.
using RingBuffers = std::array<ReusedBuffer, 2>;

// q, k, v: [B, S_local, H, D], this rank's share, any strides with D innermost; `shard` says which rows are padding
// (they are no keys; rows of the result that are padding mean nothing). Both return [B, S_local, H, D], the attention
// of q to the keys of all ranks. Failure: throws CommunicationError.
at::Tensor ringAttention(ProcessGroup& group, const SequenceShard& shard, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, RingBuffers& buffers);
at::Tensor allGatherAttention(ProcessGroup& group, const SequenceShard& shard, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const Attention& attention, RingBuffers& buffers);

}  // namespace latentd::mesh
