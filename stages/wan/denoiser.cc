#include "stages/wan/denoiser.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include "mesh/mesh.h"
#include "mesh/scalar_type.h"
#include "mesh/tensor_parallel.h"
#include "mesh/ulysses.h"
#include "stages/device/step_pacer.h"
#include "stages/device/transfer.h"
#include "stages/noise/noise.h"
#include "stages/stage_checks.h"
#include "stages/token_video.h"

namespace latentd::stages {
namespace {

constexpr const char* kDenoise = "denoise";
constexpr const char* kPromptEmbeds = "prompt_embeds";
constexpr const char* kNegativePromptEmbeds = "negative_prompt_embeds";
constexpr const char* kLatents = "latents";
constexpr const char* kGuidanceBatching = "guidance_batching";
constexpr const char* kRingAttention = "ring_attention";
// More steps than the noise levels that models are trained on cannot help.
constexpr uint32_t kStepsMax = 1000;
// Rows of a warm-up text; as the text encoder pads them.
constexpr int64_t kWarmUpRows = 512;

OptionTable<DenoiserOptions> denoiserOptionTable() {
  using Options = DenoiserOptions;
  return {
      {{kGuidanceBatching,
        "auto, batched or separate",
        "auto",
        "batched runs the model once a step for both texts, separate twice with half the memory; auto is batched.",
        {},
        {"parallel.cfg", "parallel.pp"}},
       [](Options& options, const std::string& text) {
         options.model.batched = text != "separate";
         return text == "auto" || text == "batched" || text == "separate";
       }},
      {{kRingAttention,
        "exchange or all_gather",
        "exchange",
        "With parallel.ring: exchange sends keys and values round while it computes, all_gather has all of them on "
        "each rank.",
        {"parallel.ring"}},
       [](Options& options, const std::string& text) {
         options.model.ring = text == "all_gather" ? mesh::RingVariant::kAllGather : mesh::RingVariant::kExchange;
         return text == "exchange" || text == "all_gather";
       }},
      {{kLatents,
        "tokens or whole",
        "tokens",
        "With parallel.ring or parallel.ulysses: tokens lets each rank return the tokens that it holds, whole gathers "
        "them, for a consumer that takes no tokens.",
        {"parallel.ring", "parallel.ulysses"}},
       [](Options& options, const std::string& text) {
         options.whole_latents = text == "whole";
         return text == "tokens" || text == "whole";
       }}};
}

// What a group's ranks can divide of this model.
Status checkParallel(const LoadContext& context, const wan::TransformerConfig& config) {
  using mesh::MeshDim;
  const mesh::MeshDegrees& degrees = context.degrees;
  LATENTD_RETURN_IF_ERROR(
      checkDegrees(context, "wan.denoiser",
                   {MeshDim::kCfg, MeshDim::kRing, MeshDim::kUlysses, MeshDim::kPipeline, MeshDim::kTensorParallel}));
  if (degrees.cfg > mesh::CfgParallel::kBranches) {
    return refuseDegree(MeshDim::kCfg, degrees.cfg,
                        fmt::format("guidance has {0} branches, expected 1 or {0}", mesh::CfgParallel::kBranches));
  }
  if (degrees.pp > config.layers) {
    return refuseDegree(MeshDim::kPipeline, degrees.pp,
                        fmt::format("each rank needs a layer, expected at most the {} of the model", config.layers));
  }
  if (const Status status = mesh::checkHeads(config.heads, degrees.tp); !status.ok()) {
    return refuseDegree(MeshDim::kTensorParallel, degrees.tp, messageOf(status));
  }
  if (config.ffn_dim % degrees.tp != 0) {
    return refuseDegree(
        MeshDim::kTensorParallel, degrees.tp,
        fmt::format("ffn_dim = {} does not divide over it; expected a degree that divides it", config.ffn_dim));
  }
  if (const Status status = mesh::checkHeads(config.heads / degrees.tp, degrees.ulysses); !status.ok()) {
    const std::string of_tp = degrees.tp == 1 ? "" : fmt::format(" (with tp = {})", degrees.tp);
    return refuseDegree(MeshDim::kUlysses, degrees.ulysses, messageOf(status) + of_tp);
  }
  return absl::OkStatus();
}

// What this rank takes of the model. Where nothing is loaded, as much as the first rank would.
wan::WanTransformer::LoadOptions transformerOptions(const LoadContext& context, const ComputeTarget& target) {
  using mesh::MeshDim;
  mesh::Mesh* const mesh = context.mesh;
  return {
      .dtype = target.dtype,
      .device = target.device,
      .progress = context.progress,
      .check_only = context.check_only,
      .tensor_parallel = mesh == nullptr ? mesh::TensorParallel::planned(context.degrees.tp)
                                         : mesh::TensorParallel(mesh->group(MeshDim::kTensorParallel)),
      .pipeline = {.degree = context.degrees.pp, .rank = mesh == nullptr ? 0 : mesh->coordinate(MeshDim::kPipeline)}};
}

}  // namespace

Status WanDenoiser::load(const LoadContext& context) {
  LATENTD_ASSIGN_OR_RETURN(options_, parseOptions("wan.denoiser", denoiserOptionTable(), context.options));
  mesh_ = context.mesh;
  returns_tokens_ = context.degrees.ring * context.degrees.ulysses > 1 && !options_.whole_latents;
  LATENTD_ASSIGN_OR_RETURN(const ComputeTarget target, computeTarget(context));
  LATENTD_ASSIGN_OR_RETURN(model_, wan::ServedModel::load(context.model_dir));
  LATENTD_ASSIGN_OR_RETURN(scheduler_, readSchedulerConfig(context.model_dir + "/scheduler/scheduler_config.json"));
  LATENTD_RETURN_IF_ERROR(checkParallel(context, model_->transformer));
  LATENTD_ASSIGN_OR_RETURN(transformer_,
                           wan::WanTransformer::load(context.model_dir + "/transformer", model_->transformer,
                                                     transformerOptions(context, target)));
  return absl::OkStatus();
}

Status WanDenoiser::warmUp() {
  struct WarmUpContext final : RunContext {
    Status beginStep(uint32_t, uint32_t) override { return absl::OkStatus(); }
    void finishStep(uint32_t, uint32_t) override {}
    FrameSink* frames() override { return nullptr; }
  };
  SamplingParameters parameters = limits().defaults;
  parameters.frames = 1;
  parameters.width = *limits().size_multiple;
  parameters.height = parameters.width;
  parameters.steps = 1;
  const at::Tensor text = at::zeros({1, kWarmUpRows, transformer_->config().text_dim});
  TensorTree::Dict inputs;
  inputs.entries = {{kPromptEmbeds, TensorTree::Value(text)}, {kNegativePromptEmbeds, TensorTree::Value(text)}};
  WarmUpContext context;
  return run(kDenoise, parameters, TensorTree::Value(std::move(inputs)), context).status();
}

std::vector<OptionSpec> WanDenoiser::options() const { return describeOptions(denoiserOptionTable()); }

std::vector<MethodSpec> WanDenoiser::methods() const {
  MethodSpec denoise{.name = kDenoise, .inputs = {kPromptEmbeds, kNegativePromptEmbeds}, .outputs = {kLatents}};
  if (returns_tokens_) denoise.token_outputs = {{kLatents, TokenCut::kTokens}};
  return {std::move(denoise)};
}

ModelLimits WanDenoiser::limits() const {
  ModelLimits limits;
  limits.frame_step = static_cast<uint32_t>(model_->frameStep());
  limits.size_multiple = static_cast<uint32_t>(model_->sizeMultiple());
  limits.frames_max = static_cast<uint32_t>(model_->framesMax());
  // Those of the reference's pipeline, and the rate that Wan 2.1 was trained on.
  limits.defaults.frames = 81;
  limits.defaults.width = 832;
  limits.defaults.height = 480;
  limits.defaults.steps = 50;
  limits.defaults.guidance_scale = 5.0;
  limits.defaults.fps = 16;
  limits.defaults.flow_shift = flowShift(*scheduler_);
  return limits;
}

Status WanDenoiser::checkParameters(const SamplingParameters& parameters) const {
  LATENTD_RETURN_IF_ERROR(model_->checkVideo(parameters.frames, parameters.height, parameters.width));
  if (parameters.steps < 1 || parameters.steps > kStepsMax) {
    return absl::InvalidArgumentError(fmt::format("steps = {}, expected 1 to {}", parameters.steps, kStepsMax));
  }
  if (!std::isfinite(parameters.guidance_scale)) {
    return absl::InvalidArgumentError(
        fmt::format("guidance_scale = {}, expected a finite number", parameters.guidance_scale));
  }
  const double flow_shift = parameters.flow_shift.value_or(1.0);
  if (!std::isfinite(flow_shift) || flow_shift <= 0) {
    return absl::InvalidArgumentError(fmt::format("flow_shift = {}, expected a number above 0", flow_shift));
  }
  return absl::OkStatus();
}

StatusOr<at::Tensor> WanDenoiser::takeEmbeddings(const TensorTree& inputs, const std::string& key) const {
  const std::string expected = fmt::format("a floating-point tensor [1, rows, {}]", transformer_->config().text_dim);
  const TensorTree* entry = inputs.find(key);
  if (entry == nullptr) return absl::InvalidArgumentError(fmt::format("input \"{}\" is missing: {}", key, expected));
  const at::Tensor* tensor = entry->getIf<at::Tensor>();
  if (tensor == nullptr || !tensor->defined()) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" is no tensor; expected {}", key, expected));
  }
  if (!tensor->is_floating_point() || tensor->dim() != 3 || tensor->size(0) != 1 || tensor->size(1) == 0 ||
      tensor->size(2) != transformer_->config().text_dim) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" is {} [{}]; expected {}", key,
                                                  latentd::toString(toDType(tensor->scalar_type())),
                                                  fmt::join(tensor->sizes(), ", "), expected));
  }
  // As the pipeline does before the model sees it.
  return toDevice(*tensor, transformer_->device()).to(transformer_->dtype());
}

// Both texts are checked on every rank, so that all refuse a job alike.
StatusOr<wan::GuidedModel::Job> WanDenoiser::takeJob(const SamplingParameters& parameters,
                                                     const TensorTree& inputs) const {
  const wan::LatentShape shape = model_->latentShape(parameters.frames, parameters.height, parameters.width);
  wan::GuidedModel::Job job{.guidance = parameters.guidance_scale,
                            .latent_shape = {1, shape.channels, shape.frames, shape.height, shape.width}};
  LATENTD_ASSIGN_OR_RETURN(job.prompt, takeEmbeddings(inputs, kPromptEmbeds));
  if (parameters.guidance_scale <= 1.0) return job;
  LATENTD_ASSIGN_OR_RETURN(job.negative, takeEmbeddings(inputs, kNegativePromptEmbeds));
  if (job.negative.size(1) != job.prompt.size(1)) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" has {} rows, \"{}\" has {}; expected the same number",
                                                  kNegativePromptEmbeds, job.negative.size(1), kPromptEmbeds,
                                                  job.prompt.size(1)));
  }
  return job;
}

StatusOr<TensorTree> WanDenoiser::run(const std::string& method, const SamplingParameters& parameters,
                                      const TensorTree& inputs, RunContext& context) {
  if (method != kDenoise) return unknownMethod(*this, method);
  LATENTD_RETURN_IF_ERROR(checkParameters(parameters));
  LATENTD_ASSIGN_OR_RETURN(const wan::GuidedModel::Job job, takeJob(parameters, inputs));
  wan::GuidedModel model(*transformer_, mesh_, job, options_.model);
  const std::unique_ptr<Scheduler> scheduler = makeScheduler(*scheduler_, parameters.flow_shift);
  scheduler->setTimesteps(parameters.steps);

  StepPacer pacer(context, transformer_->device(), parameters.steps);
  const at::Tensor timesteps = toDevice(scheduler->timesteps(), transformer_->device());
  at::Tensor latents = model.share(toDevice(initialLatents(parameters.seed, job.latent_shape), transformer_->device()));
  for (uint32_t step = 0; step < parameters.steps; ++step) {
    LATENTD_RETURN_IF_ERROR(pacer.begin(step));
    latents = scheduler->step(model.velocity(latents, timesteps.slice(0, step, step + 1)), latents);
    LATENTD_RETURN_IF_ERROR(pacer.submitted());
  }
  latents = latents.to(at::kFloat);
  TensorTree::Dict outputs;
  outputs.entries = {{kLatents, returns_tokens_ ? toTree(model.published(latents)) : TensorTree(model.whole(latents))}};
  LATENTD_RETURN_IF_ERROR(pacer.finish());
  return TensorTree(TensorTree::Value(std::move(outputs)));
}

}  // namespace latentd::stages
