#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/cfg_parallel.h"
#include "mesh/mesh.h"
#include "mesh/pipeline_p2p.h"
#include "mesh/ring.h"
#include "mesh/sequence_parallel.h"
#include "stages/token_video.h"
#include "stages/wan/attention.h"
#include "stages/wan/transformer.h"

namespace latentd::stages::wan {

// The transformer with one job's texts, guidance included, over the ranks of the group: latents in, velocity out.
// What a rank holds of the latents is its share(). Where tokens are sharded (ring, ulysses) it is this rank's rows of
// tokens, from the first step to the last: schedulers work element by element, so no step gathers latents, and whole()
// does once. Elsewhere every rank holds all of them, as tokens where layers are on several ranks (pp).
// With cfg = 2 each rank computes one branch, and its text alone; a job without guidance has one branch, which both
// then compute. With pp the branches of a rank are micro-batches: ranks work at both at once. Owner: one job;
// transformer and mesh outlive it. Thread: the executor's. Failure: throws c10::Error and mesh::CommunicationError.
class GuidedModel {
 public:
  struct Job {
    at::Tensor prompt;    // [1, rows, text_dim], in the transformer's type and on its device
    at::Tensor negative;  // the same; undefined: no guidance
    double guidance = 1.0;
    std::vector<int64_t> latent_shape;  // [1, C, F, H, W]
  };
  struct Options {
    bool batched = true;  // both branches of one rank in one pass
    mesh::RingVariant ring = mesh::RingVariant::kExchange;
  };
  // mesh: null for one rank.
  GuidedModel(const WanTransformer& transformer, mesh::Mesh* mesh, const Job& job, const Options& options);
  GuidedModel(const GuidedModel&) = delete;
  GuidedModel& operator=(const GuidedModel&) = delete;

  at::Tensor share(const at::Tensor& latents) const;
  // On every rank.
  at::Tensor whole(const at::Tensor& share) const;
  // Of sharded tokens: what this rank publishes, so that every token is published once and in the order of the ranks.
  // Ranks that hold the same tokens as others, for their part of the model or of guidance, publish none.
  TokenVideo published(const at::Tensor& share) const;
  // Of this rank's share, and like it; in the transformer's type.
  at::Tensor velocity(const at::Tensor& share, const at::Tensor& timestep);

 private:
  bool holdsTokens() const { return sequence_ || pipeline_; }
  std::vector<at::Tensor> passes(const Job& job, const Options& options) const;
  // Of every text, in its order.
  std::vector<at::Tensor> forward(const at::Tensor& share, const at::Tensor& timestep);

  const WanTransformer& transformer_;
  mesh::Mesh* const mesh_;
  const VideoExtents grid_;
  const double guidance_;
  const bool guided_;
  std::optional<mesh::CfgParallel> cfg_;            // guided, and a rank for each branch
  std::optional<mesh::SequenceParallel> sequence_;  // tokens are sharded
  std::optional<mesh::PipelineP2P> pipeline_;       // layers are
  SelfAttention self_attention_;
  at::Tensor rotation_;             // of this rank's tokens
  std::vector<TextContext> texts_;  // one: a branch, or prompt and negative together; two: one after the other
};

}  // namespace latentd::stages::wan
