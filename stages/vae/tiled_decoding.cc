#include "stages/vae/tiled_decoding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"

namespace latentd::stages::vae {
namespace {

at::Tensor region(const at::Tensor& image, int64_t dim, const TileSpan& span, int64_t scale) {
  return image.narrow(dim, span.begin * scale, span.length * scale);
}

}  // namespace

TiledDecoding::TiledDecoding(const AutoencoderKLWan& model, const at::Tensor& latents, const Tiling& tiling,
                             const mesh::TileShare& share)
    : model_(model),
      share_(share),
      scale_(model.config().spatialFactor() / model.config().patch_size),
      latents_(latents),
      frames_(latents.size(2)) {
  const std::vector<TileSpan> columns = cutIntoTiles(latents.size(4), tiling.width, tiling.overlap);
  for (const TileSpan& rows : cutIntoTiles(latents.size(3), tiling.height, tiling.overlap)) {
    for (const TileSpan& column : columns)
      tiles_.push_back({rows, column});
  }
  rounds_ = share_.rounds(static_cast<int64_t>(tiles_.size()));
  const int64_t height = latents.size(3) * scale_;
  const int64_t width = latents.size(4) * scale_;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(model.device());
  sum_ = at::zeros({model.config().frames(frames_), height, width, model.config().out_channels}, options);
  weight_ = at::zeros({height, width, 1}, options);
}

at::Tensor TiledDecoding::framesOf(int64_t latent) const {
  const int64_t end = model_.config().frames(latent + 1);
  const int64_t begin = latent == 0 ? 0 : model_.config().frames(latent);
  return sum_.narrow(0, begin, end - begin);
}

void TiledDecoding::begin(int64_t round) {
  decoding_.reset();
  const auto index = static_cast<size_t>(share_.tile(round));
  if (index >= tiles_.size()) return;
  tile_ = tiles_[index];
  tile_weight_ = blendWeights(tile_.rows, tile_.columns, scale_).to(weight_.device());
  region(region(weight_, 0, tile_.rows, scale_), 1, tile_.columns, scale_).add_(tile_weight_);
  decoding_.emplace(model_.decode(region(region(latents_, 3, tile_.rows, 1), 4, tile_.columns, 1)));
}

void TiledDecoding::add(int64_t latent) {
  if (!decoding_) return;
  const at::Tensor patches = decoding_->nextPatched();
  region(region(framesOf(latent), 1, tile_.rows, scale_), 2, tile_.columns, scale_)
      .add_(patches.to(at::kFloat).mul_(tile_weight_));
}

at::Tensor TiledDecoding::next() {
  LATENTD_CHECK(!done(), "next() after the last chunk");
  const at::NoGradGuard no_gradients;
  const int64_t round = next_ / frames_;
  const int64_t latent = next_ % frames_;
  ++next_;
  if (latent == 0) begin(round);
  add(latent);
  if (round + 1 < rounds_) return {};
  // The weights of all tiles are complete with the first frames.
  const at::Tensor frames = framesOf(latent);
  share_.sum_(latent == 0 ? std::vector<at::Tensor>{frames, weight_} : std::vector<at::Tensor>{frames});
  if (!share_.leads()) return {};
  return model_.toPixels(frames.div(weight_).to(model_.dtype()));
}

}  // namespace latentd::stages::vae
