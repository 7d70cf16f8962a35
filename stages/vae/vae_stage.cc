#include "stages/vae/vae_stage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "stages/scalar_type.h"
#include "stages/stage_checks.h"
#include "stages/weights/model_config.h"

namespace latentd::stages {
namespace {

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", latentd::toString(toDType(tensor.scalar_type())), fmt::join(tensor.sizes(), ", "));
}

bool isVideo(const at::Tensor& tensor, int64_t channels) {
  return tensor.is_floating_point() && tensor.dim() == 5 && tensor.size(0) == 1 && tensor.size(1) == channels &&
         tensor.numel() > 0;
}

}  // namespace

Status VaeStage::load(const LoadContext& context) {
  struct NoOptions {};
  LATENTD_RETURN_IF_ERROR(
      parseOptions<NoOptions>(half_ == vae::VaeHalf::kDecoder ? "wan.vae_decoder" : "wan.vae_encoder", {},
                              context.options)
          .status());
  LATENTD_ASSIGN_OR_RETURN(const ComputeTarget target, computeTarget(context));
  LATENTD_ASSIGN_OR_RETURN(ModelConfig index, ModelConfig::read(context.model_dir + "/model_index.json"));
  LATENTD_RETURN_IF_ERROR(checkComponentClass(index, "vae", "AutoencoderKLWan"));
  LATENTD_ASSIGN_OR_RETURN(model_,
                           vae::AutoencoderKLWan::load(context.model_dir + "/vae", {.half = half_,
                                                                                    .dtype = target.dtype,
                                                                                    .device = target.device,
                                                                                    .progress = context.progress,
                                                                                    .check_only = context.check_only}));
  return absl::OkStatus();
}

ModelLimits VaeStage::limits() const {
  ModelLimits limits;
  limits.frame_step = static_cast<uint32_t>(model().config().temporalFactor());
  limits.size_multiple = static_cast<uint32_t>(model().config().spatialFactor());
  return limits;
}

StatusOr<at::Tensor> VaeStage::takeVideo(const TensorTree& inputs, const std::string& key, int64_t channels) const {
  const std::string expected = fmt::format("a floating-point tensor [1, {}, frames, height, width]", channels);
  const TensorTree* entry = inputs.find(key);
  if (entry == nullptr) return absl::InvalidArgumentError(fmt::format("input \"{}\" is missing: {}", key, expected));
  const at::Tensor* tensor = entry->getIf<at::Tensor>();
  if (tensor == nullptr || !tensor->defined()) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" is no tensor; expected {}", key, expected));
  }
  if (!isVideo(*tensor, channels)) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" is {}; expected {}", key, describe(*tensor), expected));
  }
  return *tensor;
}

Status VaeStage::checkSize(const SamplingParameters& parameters, const std::string& key, at::IntArrayRef pixels) {
  const std::vector<int64_t> asked = {parameters.frames, parameters.height, parameters.width};
  if (at::IntArrayRef(asked) == pixels) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("input \"{}\" makes frames x height x width = {}, the job asks for {}",
                                                key, fmt::join(pixels, "x"), fmt::join(asked, "x")));
}

}  // namespace latentd::stages
