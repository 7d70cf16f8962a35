#include "stages/vae/blocks.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <utility>

namespace latentd::stages::vae {
namespace {

// Ones behind the channels in the shape of a gamma, by what its norm was made for.
constexpr int64_t kVideoNormDims = 3;
constexpr int64_t kImageNormDims = 2;

CausalConv3d::Input normalisedInput(const RmsNorm& norm, const CausalConv3d& conv, FeatureCache& cache,
                                    const at::Tensor& frames) {
  CausalConv3d::Input input = conv.prepare(cache, frames.sizes(), frames.options());
  norm.forwardSilu(frames, input.chunk);
  return input;
}

}  // namespace

ResidualBlock ResidualBlock::load(const LayerLoader& loader, int64_t in, int64_t out) {
  ResidualBlock block;
  block.norm1_ = RmsNorm::load(loader.child("norm1"), in, kVideoNormDims);
  block.conv1_ = CausalConv3d::load(loader.child("conv1"), {.in = in, .out = out});
  block.norm2_ = RmsNorm::load(loader.child("norm2"), out, kVideoNormDims);
  block.conv2_ = CausalConv3d::load(loader.child("conv2"), {.in = out, .out = out});
  if (in != out) block.shortcut_ = PointwiseConvolution::load(loader.child("conv_shortcut"), in, out, 3);
  return block;
}

at::Tensor ResidualBlock::forward(at::Tensor input, FeatureCache& cache) const {
  at::Tensor hidden = conv1_.forward(normalisedInput(norm1_, conv1_, cache, input));
  at::Tensor sum = shortcut_ ? shortcut_->forward(input) : std::move(input);
  const CausalConv3d::Input second = normalisedInput(norm2_, conv2_, cache, hidden);
  hidden.reset();  // the peak of a decode is here: nothing is kept that is not needed
  conv2_.addTo(sum, second);
  return sum;
}

AttentionBlock AttentionBlock::load(const LayerLoader& loader, int64_t channels) {
  AttentionBlock block;
  block.norm_ = RmsNorm::load(loader.child("norm"), channels, kImageNormDims);
  block.qkv_ = PointwiseConvolution::load(loader.child("to_qkv"), channels, 3 * channels, 2);
  block.projection_ = PointwiseConvolution::load(loader.child("proj"), channels, channels, 2);
  return block;
}

at::Tensor AttentionBlock::forward(at::Tensor input, const mesh::SpatialShard* shard) const {
  const int64_t frames = input.size(0);
  const int64_t channels = input.size(3);
  at::Tensor normalised = at::empty_like(input);
  norm_.forward(input, normalised);
  const at::Tensor qkv = qkv_.forward(normalised).view({frames, 1, -1, 3 * channels});
  const at::Tensor query = qkv.narrow(-1, 0, channels);
  at::Tensor keys_values = qkv.narrow(-1, channels, 2 * channels);
  if (shard != nullptr) keys_values = shard->gather(keys_values, 2);
  const at::Tensor attended = at::scaled_dot_product_attention(query, keys_values.narrow(-1, 0, channels),
                                                               keys_values.narrow(-1, channels, channels));
  return input.add_(projection_.forward(attended.reshape(input.sizes())));
}

MidBlock MidBlock::load(const LayerLoader& loader, int64_t channels) {
  MidBlock block;
  block.first_ = ResidualBlock::load(loader.child("resnets.0"), channels, channels);
  block.attention_ = AttentionBlock::load(loader.child("attentions.0"), channels);
  block.second_ = ResidualBlock::load(loader.child("resnets.1"), channels, channels);
  return block;
}

at::Tensor MidBlock::forward(at::Tensor input, FeatureCache& cache) const {
  at::Tensor hidden = first_.forward(std::move(input), cache);
  hidden = attention_.forward(std::move(hidden), cache.shard());
  return second_.forward(std::move(hidden), cache);
}

Head Head::load(const LayerLoader& loader, int64_t in, int64_t out) {
  Head head;
  head.norm_ = RmsNorm::load(loader.child("norm_out"), in, kVideoNormDims);
  head.conv_ = CausalConv3d::load(loader.child("conv_out"), {.in = in, .out = out});
  return head;
}

at::Tensor Head::forward(const at::Tensor& input, FeatureCache& cache) const {
  return conv_.forward(normalisedInput(norm_, conv_, cache, input));
}

at::Tensor Layer::forward(at::Tensor input, FeatureCache& cache) const {
  if (const auto* residual = std::get_if<ResidualBlock>(&block_)) return residual->forward(std::move(input), cache);
  return std::get<AttentionBlock>(block_).forward(std::move(input), cache.shard());
}

}  // namespace latentd::stages::vae
