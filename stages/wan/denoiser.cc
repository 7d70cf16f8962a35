#include "stages/wan/denoiser.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "stages/device/step_pacer.h"
#include "stages/device/transfer.h"
#include "stages/noise/noise.h"
#include "stages/scalar_type.h"
#include "stages/stage_checks.h"
#include "stages/vae/vae_config.h"
#include "stages/wan/attention.h"
#include "stages/weights/model_config.h"

namespace latentd::stages {
namespace {

constexpr const char* kDenoise = "denoise";
constexpr const char* kPromptEmbeds = "prompt_embeds";
constexpr const char* kNegativePromptEmbeds = "negative_prompt_embeds";
constexpr const char* kLatents = "latents";
constexpr const char* kGuidanceBatching = "guidance_batching";
// More steps than the noise levels that models are trained on cannot help.
constexpr uint32_t kStepsMax = 1000;
// Rows of a warm-up text; as the text encoder pads them.
constexpr int64_t kWarmUpRows = 512;

// Refuses, by key, what this stage does not do.
Status checkModelIndex(const std::string& model_dir) {
  LATENTD_ASSIGN_OR_RETURN(ModelConfig index, ModelConfig::read(model_dir + "/model_index.json"));
  index.refuseIfSet("expand_timesteps", "false: a timestep per token is not served");
  for (const char* component : {"transformer_2", "image_encoder"}) {
    if (index.componentClass(component).has_value()) index.refuse(component, "[null, null]: not served");
  }
  index.refuseIfSet("boundary_ratio", "null: switching between two transformers is not served");
  if (index.text("_class_name") != "WanPipeline") index.refuse("_class_name", "WanPipeline (text to video)");
  LATENTD_RETURN_IF_ERROR(index.status());
  LATENTD_RETURN_IF_ERROR(checkComponentClass(index, "transformer", "WanTransformer3DModel"));
  return checkComponentClass(index, "vae", "AutoencoderKLWan");
}

struct DenoiserOptions {
  bool batched_guidance = true;
};

OptionTable<DenoiserOptions> denoiserOptionTable() {
  return {{{kGuidanceBatching, "auto, batched or separate", "auto",
            "batched runs the model once a step for both texts, separate twice with half the memory; auto is batched."},
           [](DenoiserOptions& options, const std::string& text) {
             options.batched_guidance = text != "separate";
             return text == "auto" || text == "batched" || text == "separate";
           }}};
}

// "what = value: expected a multiple of unit ...", with the two nearest valid values; offset is the smallest.
Status checkStep(std::string_view what, int64_t value, int64_t offset, int64_t unit, int64_t max) {
  if (value >= offset && value <= max && (value - offset) % unit == 0) return absl::OkStatus();
  const int64_t below = std::clamp(offset + (value - offset) / unit * unit, offset, max);
  const int64_t above = std::min(below + unit, max);
  return absl::InvalidArgumentError(fmt::format("{} = {}: expected {} plus a multiple of {}, at most {}; nearest {}",
                                                what, value, offset, unit, max,
                                                fmt::join(std::set<int64_t>{below, above}, " or ")));
}

}  // namespace

Status WanDenoiser::load(const LoadContext& context) {
  LATENTD_ASSIGN_OR_RETURN(const DenoiserOptions options,
                           parseOptions("wan.denoiser", denoiserOptionTable(), context.options));
  batched_guidance_ = options.batched_guidance;
  LATENTD_ASSIGN_OR_RETURN(const ComputeTarget target, computeTarget(context));
  LATENTD_RETURN_IF_ERROR(checkModelIndex(context.model_dir));
  LATENTD_ASSIGN_OR_RETURN(scheduler_, readSchedulerConfig(context.model_dir + "/scheduler/scheduler_config.json"));
  const std::string vae_path = context.model_dir + "/vae/config.json";
  LATENTD_ASSIGN_OR_RETURN(const vae::VaeConfig vae, vae::VaeConfig::load(vae_path));
  temporal_factor_ = vae.temporalFactor();
  spatial_factor_ = vae.spatialFactor();
  const std::string directory = context.model_dir + "/transformer";
  LATENTD_ASSIGN_OR_RETURN(transformer_, wan::WanTransformer::load(directory, {.dtype = target.dtype,
                                                                               .device = target.device,
                                                                               .progress = context.progress,
                                                                               .check_only = context.check_only}));
  const wan::TransformerConfig& config = transformer_->config();
  if (config.in_channels != vae.z_dim || config.out_channels != vae.z_dim) {
    return absl::FailedPreconditionError(
        fmt::format("{}/config.json: in_channels = {}, out_channels = {}, expected z_dim = {} of {}: transformers that "
                    "condition on an image are not served",
                    directory, config.in_channels, config.out_channels, vae.z_dim, vae_path));
  }
  if (config.patch_size[0] != 1) {
    return absl::FailedPreconditionError(fmt::format("{}/config.json: patch_size = [{}], expected 1 along the frames",
                                                     directory, fmt::join(config.patch_size, ", ")));
  }
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
  return {{.name = kDenoise, .inputs = {kPromptEmbeds, kNegativePromptEmbeds}, .outputs = {kLatents}}};
}

ModelLimits WanDenoiser::limits() const {
  const wan::TransformerConfig& config = transformer_->config();
  ModelLimits limits;
  limits.frame_step = static_cast<uint32_t>(temporal_factor_);
  limits.size_multiple = static_cast<uint32_t>(spatial_factor_ * std::lcm(config.patch_size[1], config.patch_size[2]));
  limits.frames_max = static_cast<uint32_t>(1 + (config.rope_max_seq_len - 1) * temporal_factor_);
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
  const ModelLimits limits = this->limits();
  const wan::TransformerConfig& config = transformer_->config();
  const auto unit = static_cast<int64_t>(*limits.size_multiple);
  const auto sizeMax = [&](int64_t patch) { return config.rope_max_seq_len * patch * spatial_factor_ / unit * unit; };
  LATENTD_RETURN_IF_ERROR(checkStep("frames", parameters.frames, 1, temporal_factor_, *limits.frames_max));
  LATENTD_RETURN_IF_ERROR(checkStep("height", parameters.height, unit, unit, sizeMax(config.patch_size[1])));
  LATENTD_RETURN_IF_ERROR(checkStep("width", parameters.width, unit, unit, sizeMax(config.patch_size[2])));
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

std::vector<int64_t> WanDenoiser::latentShape(const SamplingParameters& parameters) const {
  return {1, transformer_->config().in_channels, 1 + (parameters.frames - 1) / temporal_factor_,
          parameters.height / spatial_factor_, parameters.width / spatial_factor_};
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

StatusOr<WanDenoiser::Conditioning> WanDenoiser::condition(const SamplingParameters& parameters,
                                                           const TensorTree& inputs) const {
  Conditioning given;
  given.rotation = transformer_->rope().rotation(transformer_->grid(latentShape(parameters)));
  given.guidance = parameters.guidance_scale;
  given.guided = parameters.guidance_scale > 1.0;
  LATENTD_ASSIGN_OR_RETURN(const at::Tensor prompt, takeEmbeddings(inputs, kPromptEmbeds));
  if (!given.guided) {
    given.texts = {transformer_->textContext(prompt)};
    return given;
  }
  LATENTD_ASSIGN_OR_RETURN(const at::Tensor negative, takeEmbeddings(inputs, kNegativePromptEmbeds));
  if (negative.size(1) != prompt.size(1)) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" has {} rows, \"{}\" has {}; expected the same number",
                                                  kNegativePromptEmbeds, negative.size(1), kPromptEmbeds,
                                                  prompt.size(1)));
  }
  if (batched_guidance_) {
    given.texts = {transformer_->textContext(at::cat({prompt, negative}))};
  } else {
    given.texts = {transformer_->textContext(prompt), transformer_->textContext(negative)};
  }
  return given;
}

at::Tensor WanDenoiser::predictVelocity(const at::Tensor& latents, const at::Tensor& timestep,
                                        const Conditioning& given) const {
  const wan::SelfAttention here = [](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
    return wan::attend(query, key, value);
  };
  std::vector<at::Tensor> velocities;
  for (const wan::TextContext& text : given.texts) {
    velocities.push_back(transformer_->forward(latents, timestep, text, given.rotation, here));
  }
  const at::Tensor all = at::cat(velocities);
  if (!given.guided) return all;
  const at::Tensor prompt = all.slice(0, 0, 1);
  const at::Tensor negative = all.slice(0, 1, 2);
  // In the model's type, rounded after each operation, as the reference does.
  return negative.add(prompt.sub(negative).mul(given.guidance));
}

StatusOr<TensorTree> WanDenoiser::run(const std::string& method, const SamplingParameters& parameters,
                                      const TensorTree& inputs, RunContext& context) {
  if (method != kDenoise) return unknownMethod(*this, method);
  LATENTD_RETURN_IF_ERROR(checkParameters(parameters));
  LATENTD_ASSIGN_OR_RETURN(const Conditioning given, condition(parameters, inputs));
  const std::unique_ptr<Scheduler> scheduler = makeScheduler(*scheduler_, parameters.flow_shift);
  scheduler->setTimesteps(parameters.steps);

  StepPacer pacer(context, transformer_->device(), parameters.steps);
  const at::Tensor timesteps = toDevice(scheduler->timesteps(), transformer_->device());
  at::Tensor latents = toDevice(initialLatents(parameters.seed, latentShape(parameters)), transformer_->device());
  for (uint32_t step = 0; step < parameters.steps; ++step) {
    LATENTD_RETURN_IF_ERROR(pacer.begin(step));
    latents = scheduler->step(predictVelocity(latents, timesteps.slice(0, step, step + 1), given), latents);
    LATENTD_RETURN_IF_ERROR(pacer.submitted());
  }
  latents = latents.to(at::kFloat);
  LATENTD_RETURN_IF_ERROR(pacer.finish());
  TensorTree::Dict outputs;
  outputs.entries = {{kLatents, TensorTree::Value(std::move(latents))}};
  return TensorTree(TensorTree::Value(std::move(outputs)));
}

}  // namespace latentd::stages
