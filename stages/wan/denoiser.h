#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stages/schedulers/scheduler.h"
#include "stages/stage.h"
#include "stages/wan/guided_model.h"
#include "stages/wan/served_model.h"
#include "stages/wan/transformer.h"

namespace latentd::stages {

// The `options:` of a denoiser's group.
struct DenoiserOptions {
  wan::GuidedModel::Options model;
  bool whole_latents = false;
};

// "wan.denoiser": noise to latents, for Wan 2.1 text-to-video checkpoints (one transformer, a timestep for all tokens).
//   denoise  {prompt_embeds, negative_prompt_embeds} -> {latents}, [1, channels, F, H, W], float32. Embeddings are
//            [1, rows, text_dim] with zero rows behind the prompt; the negative ones are needed with guidance only
//            (guidance_scale above 1) and may be null without.
// Option guidance_batching: "batched" runs the model once a step for both texts, "separate" twice (half the memory);
// "auto" is batched. Results are the same. It says nothing where each text has ranks of its own (cfg).
// Over ranks: cfg 1 or 2, any ring, tp and ulysses if their product divides the heads, pp up to the layers (see
// wan::GuidedModel). Every rank gets the same inputs and parameters. With ring or ulysses each returns its tokens of
// the latents (stages/token_video.h), or with the option latents = "whole" all of them, as every rank does otherwise.
// Option ring_attention: "exchange" or "all_gather".
// Owner: one worker. Thread: its executor. States and failure: as Stage. Checkpoints with expand_timesteps, two
// transformers or image conditioning are refused at load(), by key.
class WanDenoiser final : public Stage {
 public:
  Status load(const LoadContext& context) override;
  Status warmUp() override;
  std::vector<MethodSpec> methods() const override;
  std::vector<OptionSpec> options() const override;
  ModelLimits limits() const override;
  uint64_t weightBytes() const override { return transformer_->weightBytes(); }
  StatusOr<TensorTree> run(const std::string& method, const SamplingParameters& parameters, const TensorTree& inputs,
                           RunContext& context) override;

  // Features of an embedding's row.
  int64_t textDim() const { return transformer_->config().text_dim; }

 private:
  Status checkParameters(const SamplingParameters& parameters) const;
  StatusOr<at::Tensor> takeEmbeddings(const TensorTree& inputs, const std::string& key) const;
  StatusOr<wan::GuidedModel::Job> takeJob(const SamplingParameters& parameters, const TensorTree& inputs) const;

  std::optional<wan::ServedModel> model_;
  std::optional<wan::WanTransformer> transformer_;
  std::optional<SchedulerConfig> scheduler_;
  DenoiserOptions options_;
  bool returns_tokens_ = false;
  mesh::Mesh* mesh_ = nullptr;  // null: one rank
};

}  // namespace latentd::stages
