#include "stages/vae/autoencoder_kl_wan.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "runtime/base/check.h"
#include "stages/device/numerics.h"
#include "stages/device/transfer.h"
#include "stages/weights/layer_loader.h"

namespace latentd::stages::vae {
namespace {

// Frames that the encoder takes at a time after the first one.
constexpr int64_t kEncoderChunkFrames = 4;

// [1, C, T, H, W] to [T, H, W, C] and back.
at::Tensor channelsInnermost(const at::Tensor& video) { return video.squeeze(0).permute({1, 2, 3, 0}).contiguous(); }
at::Tensor channelsOutermost(const at::Tensor& frames) {
  return frames.permute({3, 0, 1, 2}).unsqueeze(0).contiguous();
}

at::Tensor perChannel(const std::vector<double>& values, const at::TensorOptions& options) {
  // float32 first, as the reference reads them.
  const at::Tensor exact = at::tensor(at::ArrayRef<double>(values), at::kFloat);
  return exact.to(options.dtype().toScalarType()).to(options.device()).view({1, -1, 1, 1, 1});
}

}  // namespace

StatusOr<AutoencoderKLWan> AutoencoderKLWan::load(const std::string& directory, const LoadOptions& options) {
  AutoencoderKLWan model;
  LATENTD_ASSIGN_OR_RETURN(model.config_, VaeConfig::load(directory + "/config.json"));
  const VaeConfig& config = model.config_;
  useReferenceNumerics(options.device, AttentionShapes::kFew);
  LATENTD_ASSIGN_OR_RETURN(WeightReader reader, WeightReader::open(directory, options.progress, options.check_only));
  LayerLoader used{.reader = &reader, .dtype = options.dtype, .device = options.device};
  LayerLoader unused = used;
  unused.check_only = true;
  const bool decodes = options.half != VaeHalf::kEncoder;
  const bool encodes = options.half != VaeHalf::kDecoder;
  const at::NoGradGuard no_gradients;
  const LayerLoader& decoder = decodes ? used : unused;
  const LayerLoader& encoder = encodes ? used : unused;
  model.decoder_ = Decoder::load(decoder.child("decoder"), config);
  model.post_quant_conv_ = PointwiseConvolution::load(decoder.child("post_quant_conv"), config.z_dim, config.z_dim, 3);
  model.encoder_ = Encoder::load(encoder.child("encoder"), config);
  model.quant_conv_ = PointwiseConvolution::load(encoder.child("quant_conv"), 2 * config.z_dim, 2 * config.z_dim, 3);
  LATENTD_RETURN_IF_ERROR(reader.finish());
  model.options_ = at::TensorOptions().dtype(options.dtype).device(options.device);
  model.mean_ = perChannel(config.latents_mean, model.options_);
  model.inverse_std_ = perChannel(config.latents_std, model.options_).reciprocal();
  if (!decodes) model.decoder_.reset();
  if (!encodes) model.encoder_.reset();
  model.weight_bytes_ = reader.takenBytes();
  return model;
}

at::Tensor AutoencoderKLWan::toModel(const at::Tensor& video) const {
  return toDevice(video.detach(), options_.device()).to(options_);
}

AutoencoderKLWan::Decoding AutoencoderKLWan::decode(const at::Tensor& latents, const mesh::SpatialShard* shard) const {
  LATENTD_CHECK(decoder_.has_value(), "decode() needs the decoder to be loaded");
  const at::NoGradGuard no_gradients;
  return Decoding(*this, post_quant_conv_.forward(channelsInnermost(toModel(latents))), shard);
}

at::Tensor AutoencoderKLWan::Decoding::nextPatched() {
  LATENTD_CHECK(!done(), "next() after the last chunk");
  const at::NoGradGuard no_gradients;
  cache_.beginChunk();
  return model_.decoder_->forward(latents_.narrow(0, next_++, 1), cache_);
}

at::Tensor AutoencoderKLWan::toPixels(const at::Tensor& patched) const {
  const at::NoGradGuard no_gradients;
  return unpatchify(patched, config_.patch_size).clamp(-1.0, 1.0);
}

AutoencoderKLWan::Encoding::Encoding(const AutoencoderKLWan& model, at::Tensor frames, const mesh::SpatialShard* shard)
    : model_(model), frames_(std::move(frames)), cache_(shard), chunks_(chunks(frames_.size(0))) {}

int64_t AutoencoderKLWan::Encoding::chunks(int64_t frames) { return 1 + (frames - 1) / kEncoderChunkFrames; }

AutoencoderKLWan::Encoding AutoencoderKLWan::encode(const at::Tensor& video, const mesh::SpatialShard* shard) const {
  LATENTD_CHECK(encoder_.has_value(), "encode() needs the encoder to be loaded");
  const at::NoGradGuard no_gradients;
  return Encoding(*this, patchify(channelsInnermost(toModel(video)), config_.patch_size), shard);
}

void AutoencoderKLWan::Encoding::next() {
  LATENTD_CHECK(!done(), "next() after the last chunk");
  const at::NoGradGuard no_gradients;
  cache_.beginChunk();
  const at::Tensor chunk = next_ == 0 ? frames_.narrow(0, 0, 1)
                                      : frames_.narrow(0, 1 + (next_ - 1) * kEncoderChunkFrames, kEncoderChunkFrames);
  parts_.push_back(model_.encoder_->forward(chunk, cache_));
  ++next_;
}

at::Tensor AutoencoderKLWan::Encoding::moments() const {
  LATENTD_CHECK(done(), "moments() before the last chunk");
  const at::NoGradGuard no_gradients;
  return channelsOutermost(model_.quant_conv_.forward(at::cat(parts_, 0)));
}

at::Tensor AutoencoderKLWan::mode(const at::Tensor& moments) const { return moments.narrow(1, 0, config_.z_dim); }

at::Tensor AutoencoderKLWan::denormalise(const at::Tensor& latents) const {
  return toModel(latents).div(inverse_std_).add_(mean_);
}

at::Tensor AutoencoderKLWan::normalise(const at::Tensor& latents) const {
  return toModel(latents).sub(mean_).mul_(inverse_std_);
}

}  // namespace latentd::stages::vae
