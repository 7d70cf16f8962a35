#include "stages/wan/served_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "stages/weights/model_config.h"

namespace latentd::stages::wan {
namespace {

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

StatusOr<ServedModel> ServedModel::load(const std::string& model_dir) {
  LATENTD_RETURN_IF_ERROR(checkModelIndex(model_dir));
  ServedModel model;
  const std::string vae_path = model_dir + "/vae/config.json";
  LATENTD_ASSIGN_OR_RETURN(model.vae, vae::VaeConfig::load(vae_path));
  const std::string path = model_dir + "/transformer/config.json";
  LATENTD_ASSIGN_OR_RETURN(model.transformer, TransformerConfig::load(path));
  const TransformerConfig& config = model.transformer;
  if (config.in_channels != model.vae.z_dim || config.out_channels != model.vae.z_dim) {
    return absl::FailedPreconditionError(
        fmt::format("{}: in_channels = {}, out_channels = {}, expected z_dim = {} of {}: transformers that condition "
                    "on an image are not served",
                    path, config.in_channels, config.out_channels, model.vae.z_dim, vae_path));
  }
  if (config.patch_size[0] != 1) {
    return absl::FailedPreconditionError(
        fmt::format("{}: patch_size = [{}], expected 1 along the frames", path, fmt::join(config.patch_size, ", ")));
  }
  return model;
}

int64_t ServedModel::framesMax() const { return vae.frames(transformer.rope_max_seq_len); }

int64_t ServedModel::sizeMultiple() const {
  return vae.spatialFactor() * std::lcm(transformer.patch_size[1], transformer.patch_size[2]);
}

Status ServedModel::checkVideo(int64_t frames, int64_t height, int64_t width, const VideoNames& names) const {
  const int64_t unit = sizeMultiple();
  const auto sizeMax = [&](int64_t patch) {
    return transformer.rope_max_seq_len * patch * vae.spatialFactor() / unit * unit;
  };
  LATENTD_RETURN_IF_ERROR(checkStep(names.frames, frames, 1, frameStep(), framesMax()));
  LATENTD_RETURN_IF_ERROR(checkStep(names.height, height, unit, unit, sizeMax(transformer.patch_size[1])));
  return checkStep(names.width, width, unit, unit, sizeMax(transformer.patch_size[2]));
}

LatentShape ServedModel::latentShape(int64_t frames, int64_t height, int64_t width) const {
  return {.channels = vae.z_dim,
          .frames = vae.latentFrames(frames),
          .height = height / vae.spatialFactor(),
          .width = width / vae.spatialFactor()};
}

}  // namespace latentd::stages::wan
