#include "stages/text/text_encoder_stage.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "stages/device/step_pacer.h"
#include "stages/stage_checks.h"
#include "stages/weights/model_config.h"

namespace latentd::stages {
namespace {

constexpr const char* kEncode = "encode";
constexpr const char* kPromptEmbeds = "prompt_embeds";
constexpr const char* kNegativePromptEmbeds = "negative_prompt_embeds";
// Rows of an embedding: what the published transformers were trained on, and the pipeline's max_sequence_length.
constexpr int64_t kRows = 512;

Status checkComponent(const std::string& model_dir) {
  LATENTD_ASSIGN_OR_RETURN(ModelConfig index, ModelConfig::read(model_dir + "/model_index.json"));
  return checkComponentClass(index, "text_encoder", "UMT5EncoderModel");
}

}  // namespace

Status TextEncoderStage::load(const LoadContext& context) {
  LATENTD_ASSIGN_OR_RETURN(options_, parseTextEncoderOptions(context.options));
  LATENTD_RETURN_IF_ERROR(checkDegrees(context, "wan.text_encoder", {}));
  LATENTD_ASSIGN_OR_RETURN(const ComputeTarget target, computeTarget(context));
  LATENTD_RETURN_IF_ERROR(checkComponent(context.model_dir));
  LATENTD_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::load(context.model_dir + "/tokenizer"));
  const std::string directory = context.model_dir + "/text_encoder";
  LATENTD_ASSIGN_OR_RETURN(encoder_, Umt5Encoder::load(directory, {.dtype = target.dtype,
                                                                   .device = target.device,
                                                                   .length_max = kRows,
                                                                   .progress = context.progress,
                                                                   .check_only = context.check_only}));
  if (tokenizer_->idsEnd() > encoder_->config().vocab_size) {
    return absl::InvalidArgumentError(fmt::format("{}: vocab_size is {}, but the tokenizer has ids up to {}", directory,
                                                  encoder_->config().vocab_size, tokenizer_->idsEnd() - 1));
  }
  return absl::OkStatus();
}

Status TextEncoderStage::warmUp() {
  // The usual negative prompt, so that it is in the cache too.
  return embedNegative("").status();
}

std::vector<MethodSpec> TextEncoderStage::methods() const {
  return {{.name = kEncode, .inputs = {}, .outputs = {kPromptEmbeds, kNegativePromptEmbeds}}};
}

ModelLimits TextEncoderStage::limits() const {
  ModelLimits limits;
  limits.prompt_bytes_max = options_.prompt_bytes_max;
  return limits;
}

uint64_t TextEncoderStage::weightBytes() const { return encoder_->weightBytes(); }

StatusOr<TensorTree> TextEncoderStage::run(const std::string& method, const SamplingParameters& parameters,
                                           const TensorTree& inputs, RunContext& context) {
  (void)inputs;
  if (method != kEncode) {
    return absl::InvalidArgumentError(fmt::format("method \"{}\" is unknown; expected {}", method, kEncode));
  }
  LATENTD_RETURN_IF_ERROR(checkPrompt(parameters.prompt, "prompt", options_.prompt_bytes_max));
  LATENTD_RETURN_IF_ERROR(checkPrompt(parameters.negative_prompt, "negative_prompt", options_.prompt_bytes_max));
  StepPacer pacer(context, encoder_->device(), 1);
  LATENTD_RETURN_IF_ERROR(pacer.begin(0));
  TensorTree::Dict embeds;
  LATENTD_ASSIGN_OR_RETURN(at::Tensor prompt, embed(parameters.prompt));
  embeds.entries.emplace_back(kPromptEmbeds, TensorTree::Value(std::move(prompt)));
  TensorTree negative;
  if (parameters.guidance_scale > 1.0) {
    LATENTD_ASSIGN_OR_RETURN(at::Tensor embedded, embedNegative(parameters.negative_prompt));
    negative = TensorTree::Value(std::move(embedded));
  }
  embeds.entries.emplace_back(kNegativePromptEmbeds, std::move(negative));
  LATENTD_RETURN_IF_ERROR(pacer.submitted());
  LATENTD_RETURN_IF_ERROR(pacer.finish());
  return TensorTree(TensorTree::Value(std::move(embeds)));
}

StatusOr<at::Tensor> TextEncoderStage::embed(std::string_view text) const {
  LATENTD_ASSIGN_OR_RETURN(const std::string clean, cleanPrompt(text, options_.prompt_cleaning));
  LATENTD_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, tokenizer_->encode(clean, kRows));
  const at::Tensor encoded = encoder_->encode(ids);
  at::Tensor padded = at::zeros({1, kRows, encoded.size(1)}, encoded.options());
  padded.narrow(1, 0, encoded.size(0)).copy_(encoded.unsqueeze(0));
  return padded;
}

StatusOr<at::Tensor> TextEncoderStage::embedNegative(const std::string& text) {
  const auto found =
      std::find_if(negatives_.begin(), negatives_.end(), [&](const auto& entry) { return entry.first == text; });
  if (found != negatives_.end()) {
    negatives_.splice(negatives_.begin(), negatives_, found);
    return negatives_.front().second;
  }
  LATENTD_ASSIGN_OR_RETURN(at::Tensor embedded, embed(text));
  negatives_.emplace_front(text, embedded);
  if (negatives_.size() > options_.negative_cache) negatives_.pop_back();
  return embedded;
}

}  // namespace latentd::stages
