#include "stages/vae/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace latentd::stages::vae {
namespace {

// Channels that leave block `index`, counted from the latents; index -1 is the middle.
int64_t channelsAfter(const VaeConfig& config, int64_t index) {
  const auto& mult = config.dim_mult;
  const int64_t level = static_cast<int64_t>(mult.size()) - 1 - std::max<int64_t>(index, 0);
  return config.decoder_base_dim * mult[level];
}

}  // namespace

UpBlock UpBlock::load(const LayerLoader& loader, const VaeConfig& config, size_t index) {
  const auto blocks = config.dim_mult.size();
  const bool upsamples = index + 1 < blocks;
  // temporal_downsample goes from pixels to latents, the decoder the other way.
  const bool temporal = upsamples && config.temporal_downsample[blocks - 2 - index];
  const int64_t out = channelsAfter(config, index);
  int64_t in = channelsAfter(config, static_cast<int64_t>(index) - 1);
  // Wan 2.1's upsampling halves the channels, so the next block starts with half of them; Wan 2.2's keeps them.
  if (index > 0 && !config.is_residual) in /= 2;
  UpBlock block;
  if (upsamples && config.is_residual) {
    block.shortcut_ = DuplicateUp{.out = out, .time_factor = temporal ? 2 : 1, .space_factor = 2};
  }
  for (int64_t i = 0; i <= config.num_res_blocks; ++i) {
    block.layers_.push_back(ResidualBlock::load(loader.child(fmt::format("resnets.{}", i)), in, out));
    in = out;
  }
  if (upsamples) {
    const LayerLoader upsampler = loader.child(config.is_residual ? "upsampler" : "upsamplers.0");
    block.upsample_ = Upsample::load(upsampler, out, config.is_residual ? out : out / 2, temporal);
  }
  return block;
}

at::Tensor UpBlock::forward(at::Tensor input, FeatureCache& cache) const {
  // Before the layers, which overwrite their input.
  at::Tensor shortcut;
  if (shortcut_) shortcut = shortcut_->forward(input, cache.isFirstChunk());
  for (const ResidualBlock& layer : layers_)
    input = layer.forward(std::move(input), cache);
  if (upsample_) input = upsample_->forward(std::move(input), cache);
  return shortcut_ ? input.add_(shortcut) : input;
}

Decoder Decoder::load(const LayerLoader& loader, const VaeConfig& config) {
  const auto last = static_cast<int64_t>(config.dim_mult.size()) - 1;
  const int64_t widest = channelsAfter(config, -1);
  Decoder decoder;
  decoder.conv_in_ = CausalConv3d::load(loader.child("conv_in"), {.in = config.z_dim, .out = widest});
  decoder.mid_block_ = MidBlock::load(loader.child("mid_block"), widest);
  for (size_t i = 0; i < config.dim_mult.size(); ++i) {
    decoder.up_blocks_.push_back(UpBlock::load(loader.child(fmt::format("up_blocks.{}", i)), config, i));
  }
  decoder.head_ = Head::load(loader, channelsAfter(config, last), config.out_channels);
  return decoder;
}

at::Tensor Decoder::forward(const at::Tensor& latents, FeatureCache& cache) const {
  at::Tensor hidden = middle(enter(latents, cache), cache);
  for (size_t i = 0; i < up_blocks_.size(); ++i)
    hidden = up(i, std::move(hidden), cache);
  return leave(hidden, cache);
}

at::Tensor Decoder::middle(at::Tensor hidden, FeatureCache& cache) const {
  return mid_block_.forward(std::move(hidden), cache);
}

at::Tensor Decoder::up(size_t index, at::Tensor hidden, FeatureCache& cache) const {
  return up_blocks_[index].forward(std::move(hidden), cache);
}

}  // namespace latentd::stages::vae
