#include "stages/wan/guided_model.h"

#include <ATen/ops/cat.h>

#include <memory>
#include <utility>

#include "runtime/base/check.h"

namespace latentd::stages::wan {
namespace {

bool divides(mesh::Mesh* mesh, mesh::MeshDim dim) { return mesh != nullptr && mesh->degree(dim) > 1; }

VideoExtents extentsOf(const Grid& grid) { return {grid[0], grid[1], grid[2]}; }

}  // namespace

GuidedModel::GuidedModel(const WanTransformer& transformer, mesh::Mesh* mesh, const Job& job, const Options& options)
    : transformer_(transformer),
      mesh_(mesh),
      grid_(extentsOf(transformer.grid(job.latent_shape))),
      guidance_(job.guidance),
      guided_(job.negative.defined()),
      self_attention_(attendTo),
      rotation_(transformer.rope().rotation(transformer.grid(job.latent_shape))) {
  if (guided_ && divides(mesh, mesh::MeshDim::kCfg)) cfg_.emplace(*mesh);
  if (divides(mesh, mesh::MeshDim::kPipeline)) {
    pipeline_.emplace(mesh->group(mesh::MeshDim::kPipeline), transformer.device());
  }
  if (divides(mesh, mesh::MeshDim::kRing) || divides(mesh, mesh::MeshDim::kUlysses)) {
    const auto attention = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return attend(q, k, v);
    };
    sequence_.emplace(*mesh, rotation_.size(0), options.ring, attention);
    self_attention_ = [this](const at::Tensor& v) -> AttentionToValues {
      // Shared, as functions are copied: moved into place and called once.
      const auto begun = std::make_shared<mesh::SequenceParallel::Begun>(sequence_->begin(v));
      return [begun](const at::Tensor& q, const at::Tensor& k) { return begun->attend(q, k); };
    };
    rotation_ = sequence_->shard().slice(rotation_, 0);
  }
  for (const at::Tensor& text : passes(job, options))
    texts_.push_back(transformer.textContext(text));
}

// The texts that this rank runs the model with, each in a pass of its own.
std::vector<at::Tensor> GuidedModel::passes(const Job& job, const Options& options) const {
  if (!guided_) return {job.prompt};
  if (cfg_) return {cfg_->branch() == 0 ? job.prompt : job.negative};
  if (options.batched && !pipeline_) return {at::cat({job.prompt, job.negative})};
  return {job.prompt, job.negative};
}

at::Tensor GuidedModel::share(const at::Tensor& latents) const {
  if (!holdsTokens()) return latents;
  const at::Tensor tokens = patchify(latents, transformer_.patch()).tokens;
  return sequence_ ? sequence_->shard().slice(tokens, 1) : tokens;
}

at::Tensor GuidedModel::whole(const at::Tensor& share) const {
  if (!holdsTokens()) return share;
  return unpatchify({sequence_ ? sequence_->shard().gather(share, 1) : share, grid_, transformer_.patch()});
}

TokenVideo GuidedModel::published(const at::Tensor& share) const {
  LATENTD_CHECK(sequence_.has_value(), "tokens that are not sharded are published whole");
  bool first = true;  // of the ranks that hold the same tokens
  for (const mesh::MeshDim dim : {mesh::MeshDim::kCfg, mesh::MeshDim::kPipeline, mesh::MeshDim::kTensorParallel})
    first = first && mesh_->coordinate(dim) == 0;
  const mesh::SequenceShard& shard = sequence_->shard();
  const auto rank = static_cast<int>(mesh_->shape().sequenceCoordinate(mesh_->rank()));
  const int64_t held = first ? shard.validLength(rank) : 0;
  return {share.narrow(1, 0, held).contiguous(), grid_, transformer_.patch(), TokenCut::kTokens,
          held > 0 ? shard.start(rank) : 0};
}

std::vector<at::Tensor> GuidedModel::forward(const at::Tensor& share, const at::Tensor& timestep) {
  const auto layers = [&](size_t text, at::Tensor x) {
    return transformer_.forwardTokens(std::move(x), timestep, texts_[text], rotation_, self_attention_);
  };
  if (pipeline_) {
    return pipeline_->run(texts_.size(), [&](size_t text, at::Tensor x) {
      return layers(text, transformer_.pipeline().first() ? share : std::move(x));
    });
  }
  std::vector<at::Tensor> velocities;
  for (size_t i = 0; i < texts_.size(); ++i) {
    velocities.push_back(sequence_ ? layers(i, share)
                                   : transformer_.forward(share, timestep, texts_[i], rotation_, self_attention_));
  }
  return velocities;
}

at::Tensor GuidedModel::velocity(const at::Tensor& share, const at::Tensor& timestep) {
  at::Tensor all = at::cat(forward(share, timestep));
  if (cfg_) all = cfg_->gather(all);
  if (!guided_) return all;
  const at::Tensor prompt = all.slice(0, 0, 1);
  const at::Tensor negative = all.slice(0, 1, 2);
  // In the model's type, rounded after each operation, as the reference does.
  return negative.add(prompt.sub(negative).mul(guidance_));
}

}  // namespace latentd::stages::wan
