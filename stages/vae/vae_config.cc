#include "stages/vae/vae_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "stages/weights/model_config.h"

namespace latentd::stages::vae {
namespace {

// The published encoder takes 1 + 4k frames, four at a time; more than two temporal halvings would not divide them.
constexpr int64_t kTemporalFactorMax = 4;
// Channels that no model comes near; keeps products of them far from overflow.
constexpr int64_t kChannelsMax = 1 << 16;
constexpr size_t kBlocksMax = 16;
constexpr int64_t kRgb = 3;

void readSizes(ModelConfig& file, VaeConfig& config) {
  config.base_dim = file.positive("base_dim", 96);
  config.decoder_base_dim = file.positive("decoder_base_dim", config.base_dim);
  config.z_dim = file.positive("z_dim", 16);
  config.dim_mult = file.has("dim_mult") ? file.integers("dim_mult") : std::vector<int64_t>{1, 2, 4, 4};
  config.num_res_blocks = file.positive("num_res_blocks", 2);
  if (file.has("attn_scales")) config.attn_scales = file.numbers("attn_scales");
  config.temporal_downsample = file.has("temperal_downsample")
                                   ? file.flags("temperal_downsample")  // the file's spelling
                                   : std::vector<bool>{false, true, true};
  config.is_residual = file.flag("is_residual", false);
  config.in_channels = file.positive("in_channels", kRgb);
  config.out_channels = file.positive("out_channels", kRgb);
  config.patch_size = file.positive("patch_size", 1);
  config.latents_mean = file.numbers("latents_mean", config.z_dim);
  config.latents_std = file.numbers("latents_std", config.z_dim);
  file.ignore({"dropout"});  // inference only
}

void checkBlocks(ModelConfig& file, const VaeConfig& config) {
  const size_t blocks = config.dim_mult.size();
  if (blocks < 1 || blocks > kBlocksMax) file.refuse("dim_mult", fmt::format("1 to {} multipliers", kBlocksMax));
  if (config.temporal_downsample.size() + 1 != blocks) {
    file.refuse("temperal_downsample",
                fmt::format("{} flags, one fewer than dim_mult", std::max<size_t>(blocks, 1) - 1));
  }
  for (int64_t multiplier : config.dim_mult) {
    const int64_t base = std::max(config.base_dim, config.decoder_base_dim);
    if (multiplier < 1 || base > kChannelsMax || multiplier > kChannelsMax / base) {
      file.refuse("dim_mult", fmt::format("multipliers that give 1 to {} channels", kChannelsMax));
    }
  }
  if (config.is_residual && !config.attn_scales.empty()) {
    file.refuse("attn_scales", "an empty list where is_residual is true");
  }
  if (config.z_dim > kChannelsMax) file.refuse("z_dim", fmt::format("at most {}", kChannelsMax));
}

// AvgDown3D and DupUp3D need channel counts that divide.
void checkResidualChannels(ModelConfig& file, const VaeConfig& config) {
  if (!config.is_residual) return;
  const auto& mult = config.dim_mult;
  for (size_t i = 0; i < mult.size(); ++i) {
    const bool halves = i + 1 < mult.size();
    const int64_t factor = (halves ? 4 : 1) * (halves && config.temporal_downsample[i] ? 2 : 1);
    const int64_t in = config.base_dim * (i == 0 ? 1 : mult[i - 1]);
    if (in * factor % (config.base_dim * mult[i]) != 0) {
      file.refuse("dim_mult", fmt::format("channels of encoder block {} times {} that its output divides", i, factor));
    }
  }
  for (size_t i = 0; i + 1 < mult.size(); ++i) {
    const size_t level = mult.size() - 1 - i;
    const int64_t factor = 4 * (config.temporal_downsample[level - 1] ? 2 : 1);
    const int64_t in = config.decoder_base_dim * (i == 0 ? mult[level] : mult[level + 1]);
    if (config.decoder_base_dim * mult[level] * factor % in != 0) {
      file.refuse("dim_mult", fmt::format("channels of decoder block {} times {} that its input divides", i, factor));
    }
  }
}

void checkPixels(ModelConfig& file, const VaeConfig& config) {
  const int64_t patch_area = config.patch_size * config.patch_size;
  if (config.patch_size > 16) file.refuse("patch_size", "1 to 16, or null");
  if (config.in_channels != kRgb * patch_area) {
    file.refuse("in_channels", fmt::format("{} (RGB times the patch)", kRgb * patch_area));
  }
  if (config.out_channels != kRgb * patch_area) {
    file.refuse("out_channels", fmt::format("{} (RGB times the patch)", kRgb * patch_area));
  }
  if (std::any_of(config.latents_std.begin(), config.latents_std.end(), [](double value) { return value <= 0; })) {
    file.refuse("latents_std", "positive numbers");
  }
}

// What the pipeline believes must be what the layers do.
void checkFactors(ModelConfig& file, const VaeConfig& config) {
  if (config.temporalFactor() > kTemporalFactorMax) {
    file.refuse("temperal_downsample", "at most two true flags (four frames per latent frame)");
  }
  if (file.positive("scale_factor_temporal", 4) != config.temporalFactor()) {
    file.refuse("scale_factor_temporal", fmt::format("{}, from temperal_downsample", config.temporalFactor()));
  }
  if (file.positive("scale_factor_spatial", 8) != config.spatialFactor()) {
    file.refuse("scale_factor_spatial", fmt::format("{}, from dim_mult and patch_size", config.spatialFactor()));
  }
}

}  // namespace

int64_t VaeConfig::temporalFactor() const {
  return int64_t{1} << std::count(temporal_downsample.begin(), temporal_downsample.end(), true);
}

int64_t VaeConfig::spatialFactor() const { return patch_size << temporal_downsample.size(); }

StatusOr<VaeConfig> VaeConfig::load(const std::string& path) {
  LATENTD_ASSIGN_OR_RETURN(ModelConfig file, ModelConfig::read(path));
  if (file.text("_class_name") != "AutoencoderKLWan") file.refuse("_class_name", "\"AutoencoderKLWan\"");
  VaeConfig config;
  readSizes(file, config);
  LATENTD_RETURN_IF_ERROR(file.status());
  checkBlocks(file, config);
  LATENTD_RETURN_IF_ERROR(file.status());
  checkResidualChannels(file, config);
  checkPixels(file, config);
  checkFactors(file, config);
  LATENTD_RETURN_IF_ERROR(file.finish());
  return config;
}

}  // namespace latentd::stages::vae
