#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stages/schedulers/scheduler.h"
#include "stages/stage.h"
#include "stages/wan/transformer.h"

namespace latentd::stages {

// "wan.denoiser": noise to latents, for Wan 2.1 text-to-video checkpoints (one transformer, a timestep for all tokens).
//   denoise  {prompt_embeds, negative_prompt_embeds} -> {latents}, [1, channels, F, H, W], float32. Embeddings are
//            [1, rows, text_dim] with zero rows behind the prompt; the negative ones are needed with guidance only
//            (guidance_scale above 1) and may be null without.
// Option guidance_batching: "batched" runs the model once a step for both texts, "separate" twice (half the memory);
// "auto" is batched. Results are the same.
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
  // What does not change over the steps of a job.
  struct Conditioning {
    std::vector<wan::TextContext> texts;  // one: the prompt, or prompt and negative together; two: one after the other
    at::Tensor rotation;
    double guidance = 1.0;
    bool guided = false;
  };

  Status checkParameters(const SamplingParameters& parameters) const;
  std::vector<int64_t> latentShape(const SamplingParameters& parameters) const;
  StatusOr<at::Tensor> takeEmbeddings(const TensorTree& inputs, const std::string& key) const;
  StatusOr<Conditioning> condition(const SamplingParameters& parameters, const TensorTree& inputs) const;
  at::Tensor predictVelocity(const at::Tensor& latents, const at::Tensor& timestep, const Conditioning& given) const;

  std::optional<wan::WanTransformer> transformer_;
  std::optional<SchedulerConfig> scheduler_;
  bool batched_guidance_ = true;
  int64_t temporal_factor_ = 4;  // of the VAE
  int64_t spatial_factor_ = 8;   // of the VAE
};

}  // namespace latentd::stages
