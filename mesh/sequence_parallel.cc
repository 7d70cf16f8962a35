#include "mesh/sequence_parallel.h"

#include <utility>

namespace latentd::mesh {

SequenceParallel::SequenceParallel(Mesh& mesh, int64_t length, RingVariant variant, Attention attention)
    : ulysses_(mesh.group(MeshDim::kUlysses)),
      scatter_(mesh.headScatter()),
      ring_(mesh.group(MeshDim::kRing)),
      variant_(variant),
      attention_(std::move(attention)),
      shard_(mesh.sequence(), length),
      ring_shard_(ring_, length, ulysses_.size()) {}

SequenceParallel::Begun SequenceParallel::begin(const at::Tensor& v) {
  scatter_.begin(v.sizes(), v.scalar_type());
  return Begun(*this, scatter_.submit(HeadTag::kValue, v));
}

at::Tensor SequenceParallel::Begun::attend(const at::Tensor& q, const at::Tensor& k) {
  PendingHeads queries = parallel_.scatter_.submit(HeadTag::kQuery, q);
  PendingHeads keys = parallel_.scatter_.submit(HeadTag::kKey, k);
  const at::Tensor query = queries.wait();
  const at::Tensor key = keys.wait();
  const at::Tensor value = values_.wait();
  return gatherHeads(parallel_.ulysses_, parallel_.attendRing(query, key, value)).wait();
}

at::Tensor SequenceParallel::attendRing(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (ring_.size() == 1) {
    // Padding is behind all rows.
    return attention_(q, k.narrow(1, 0, shard_.length()), v.narrow(1, 0, shard_.length()));
  }
  if (variant_ == RingVariant::kAllGather) {
    return allGatherAttention(ring_, ring_shard_, q, k, v, attention_, buffers_);
  }
  return ringAttention(ring_, ring_shard_, q, k, v, buffers_);
}

}  // namespace latentd::mesh
