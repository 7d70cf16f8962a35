#include "mesh/ring.h"

#include <utility>

#include "mesh/block_attention.h"

namespace latentd::mesh {
namespace {

// Keys and values of some rows as they travel: [S, 2, B, H, D], so that blocks of several ranks, one behind the other,
// are the block of all their rows.
struct KeyValueBlock {
  at::Tensor rows;

  at::Tensor key() const { return rows.select(1, 0).transpose(0, 1); }
  at::Tensor value() const { return rows.select(1, 1).transpose(0, 1); }
  KeyValueBlock first(int64_t count) const { return {rows.narrow(0, 0, count)}; }
};

KeyValueBlock blockOf(int64_t rows, const at::Tensor& like, size_t index, RingBuffers& buffers) {
  return {buffers[index].view({rows, 2, like.size(0), like.size(2), like.size(3)}, like.options())};
}

KeyValueBlock ownBlock(const at::Tensor& k, const at::Tensor& v, RingBuffers& buffers) {
  const KeyValueBlock block = blockOf(k.size(1), k, 0, buffers);
  block.key().copy_(k);
  block.value().copy_(v);
  return block;
}

void addBlock(PartialAttention& sum, const at::Tensor& q, const KeyValueBlock& block) {
  PartialAttention partial = attendBlock(q, block.key(), block.value());
  if (sum.output.defined()) {
    merge(sum, partial);
  } else {
    sum = {partial.output.to(at::kFloat), std::move(partial.log_sum_exp)};
  }
}

}  // namespace

at::Tensor ringAttention(ProcessGroup& group, const SequenceShard& shard, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, RingBuffers& buffers) {
  const int size = group.size();
  const int next = (group.rank() + 1) % size;
  const int previous = (group.rank() + size - 1) % size;
  KeyValueBlock current = ownBlock(k, v, buffers);
  KeyValueBlock incoming = blockOf(k.size(1), k, 1, buffers);
  PartialAttention sum;
  for (int step = 0; step < size; ++step) {
    Pending transfer;
    if (step + 1 < size) transfer = group.exchange({{next, current.rows}}, {{previous, incoming.rows}});
    // None for a rank that has padding only; rank 0 has a key in any case.
    const int64_t keys = shard.validLength((group.rank() + size - step) % size);
    if (keys > 0) addBlock(sum, q, current.first(keys));
    transfer.wait();
    std::swap(current, incoming);
  }
  return sum.output.to(q.scalar_type());
}

at::Tensor allGatherAttention(ProcessGroup& group, const SequenceShard& shard, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const Attention& attention, RingBuffers& buffers) {
  const KeyValueBlock own = ownBlock(k, v, buffers);
  const KeyValueBlock all = blockOf(shard.paddedLength(), k, 1, buffers);
  group.allGather(all.rows, own.rows).wait();
  const KeyValueBlock keys = all.first(shard.length());
  return attention(q, keys.key(), keys.value());
}

}  // namespace latentd::mesh
