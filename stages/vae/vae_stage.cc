#include "stages/vae/vae_stage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/scalar_type.h"
#include "mesh/spatial_shard.h"
#include "stages/stage_checks.h"
#include "stages/token_video.h"
#include "stages/weights/model_config.h"

namespace latentd::stages {
namespace {

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", latentd::toString(toDType(tensor.scalar_type())), fmt::join(tensor.sizes(), ", "));
}

bool isVideo(const at::Tensor& tensor, int64_t channels) {
  return tensor.is_floating_point() && tensor.dim() == 5 && tensor.size(0) == 1 && tensor.size(1) == channels &&
         tensor.size(2) > 0 && tensor.size(4) > 0;
}

// The tensor, or what tokens make of a video.
StatusOr<at::Tensor> tensorOf(const TensorTree& entry, const std::string& key) {
  if (isTokenVideo(entry)) {
    LATENTD_ASSIGN_OR_RETURN(const TokenVideo video, tokenVideoOf(entry, key));
    if (video.cut != TokenCut::kTokens) return unpatchify(video);
    return absl::InvalidArgumentError(fmt::format("input \"{}\" is a run of tokens; expected rows, or all of it", key));
  }
  const at::Tensor* tensor = entry.getIf<at::Tensor>();
  if (tensor != nullptr && tensor->defined()) return *tensor;
  return absl::InvalidArgumentError(fmt::format("input \"{}\" is no tensor", key));
}

}  // namespace

Status VaeStage::loadModel(const LoadContext& context) {
  LATENTD_RETURN_IF_ERROR(checkDegrees(context, name(), {mesh::MeshDim::kSpatial}));
  spatial_ = context.degrees.spatial;
  if (context.mesh != nullptr && context.mesh->degree(mesh::MeshDim::kSpatial) > 1) {
    halo_.emplace(context.mesh->group(mesh::MeshDim::kSpatial));
  }
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
  if (sharesImages()) limits.height_shards = spatial_;
  return limits;
}

StatusOr<at::Tensor> VaeStage::takeVideo(const TensorTree& inputs, const std::string& key, int64_t channels) const {
  const std::string expected = fmt::format("a floating-point tensor [1, {}, frames, height, width]", channels);
  const TensorTree* entry = inputs.find(key);
  if (entry == nullptr) return absl::InvalidArgumentError(fmt::format("input \"{}\" is missing: {}", key, expected));
  LATENTD_ASSIGN_OR_RETURN(at::Tensor tensor, tensorOf(*entry, key));
  // A rank that was given no rows says so when all meet.
  if (isVideo(tensor, channels) && (tensor.size(3) > 0 || halo_)) return tensor;
  return absl::InvalidArgumentError(fmt::format("input \"{}\" is {}; expected {}", key, describe(tensor), expected));
}

StatusOr<int64_t> VaeStage::sharedHeight(const SamplingParameters& parameters) {
  LATENTD_RETURN_IF_ERROR(
      mesh::SpatialShard::checkHeight(parameters.height, model().config().spatialFactor(), ranks().size()));
  return parameters.height;
}

Status VaeStage::checkSize(const SamplingParameters& parameters, const std::string& key, at::IntArrayRef pixels) {
  const std::vector<int64_t> asked = {parameters.frames, parameters.height, parameters.width};
  if (at::IntArrayRef(asked) == pixels) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("input \"{}\" makes frames x height x width = {}, the job asks for {}",
                                                key, fmt::join(pixels, "x"), fmt::join(asked, "x")));
}

}  // namespace latentd::stages
