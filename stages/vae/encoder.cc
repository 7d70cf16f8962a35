#include "stages/vae/encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace latentd::stages::vae {
namespace {

bool attendsAt(const VaeConfig& config, size_t index) {
  const double scale = std::ldexp(1.0, -static_cast<int>(index));  // each block halves the size
  return std::find(config.attn_scales.begin(), config.attn_scales.end(), scale) != config.attn_scales.end();
}

}  // namespace

DownBlock DownBlock::load(const LayerLoader& loader, const VaeConfig& config, size_t index, size_t& next) {
  const bool downsamples = index + 1 < config.dim_mult.size();
  const bool temporal = downsamples && config.temporal_downsample[index];
  const int64_t out = config.base_dim * config.dim_mult[index];
  int64_t in = config.base_dim * (index == 0 ? 1 : config.dim_mult[index - 1]);
  // Wan 2.2 groups its blocks.
  const LayerLoader group = config.is_residual ? loader.child(std::to_string(index)) : loader;
  const auto layer = [&](int64_t i) {
    return group.child(config.is_residual ? fmt::format("resnets.{}", i) : std::to_string(next++));
  };
  DownBlock block;
  if (config.is_residual) {
    block.shortcut_ = AverageDown{.out = out, .time_factor = temporal ? 2 : 1, .space_factor = downsamples ? 2 : 1};
  }
  for (int64_t i = 0; i < config.num_res_blocks; ++i) {
    block.layers_.emplace_back(ResidualBlock::load(layer(i), in, out));
    if (attendsAt(config, index)) block.layers_.emplace_back(AttentionBlock::load(layer(i), out));
    in = out;
  }
  if (downsamples) {
    const LayerLoader way_down = group.child(config.is_residual ? "downsampler" : std::to_string(next++));
    block.downsample_ = Downsample::load(way_down, out, temporal);
  }
  return block;
}

at::Tensor DownBlock::forward(at::Tensor input, FeatureCache& cache) const {
  // Before the layers, which overwrite their input.
  at::Tensor shortcut;
  if (shortcut_) shortcut = shortcut_->forward(input);
  for (const Layer& layer : layers_)
    input = layer.forward(std::move(input), cache);
  if (downsample_) input = downsample_->forward(std::move(input), cache);
  return shortcut_ ? input.add_(shortcut) : input;
}

Encoder Encoder::load(const LayerLoader& loader, const VaeConfig& config) {
  const int64_t widest = config.base_dim * config.dim_mult.back();
  Encoder encoder;
  encoder.conv_in_ = CausalConv3d::load(loader.child("conv_in"), {.in = config.in_channels, .out = config.base_dim});
  size_t next = 0;
  for (size_t i = 0; i < config.dim_mult.size(); ++i) {
    encoder.down_blocks_.push_back(DownBlock::load(loader.child("down_blocks"), config, i, next));
  }
  encoder.mid_block_ = MidBlock::load(loader.child("mid_block"), widest);
  encoder.head_ = Head::load(loader, widest, 2 * config.z_dim);
  return encoder;
}

at::Tensor Encoder::forward(const at::Tensor& frames, FeatureCache& cache) const {
  at::Tensor hidden = conv_in_.forward(cache, frames);
  for (const DownBlock& block : down_blocks_)
    hidden = block.forward(std::move(hidden), cache);
  return head_.forward(mid_block_.forward(std::move(hidden), cache), cache);
}

}  // namespace latentd::stages::vae
