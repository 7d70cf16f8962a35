#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "mesh/halo.h"
#include "mesh/process_group.h"
#include "mesh/spatial_shard.h"
#include "stages/stage.h"
#include "stages/vae/autoencoder_kl_wan.h"

namespace latentd::stages {

// What the decoder and the encoder stage have in common: loading "vae" of a checkpoint, its limits, and its ranks, of
// which there may be several along "spatial". Every rank gets the same job, and its input either whole or by height: of
// an edge with consumer_shard_dim 3, or of one that brings tokens by rows, in shards of any heights.
// Owner: the worker. Thread: the executor's. States: as Stage. Failure: as Stage.
class VaeStage : public Stage {
 public:
  ModelLimits limits() const override;
  uint64_t weightBytes() const override { return model_->weightBytes(); }

 protected:
  // Of [1, channels, T, H, W].
  static constexpr int32_t kHeightDim = 3;

  explicit VaeStage(vae::VaeHalf half) : half_(half) {}

  // All of load() but the options.
  Status loadModel(const LoadContext& context);
  const char* name() const { return half_ == vae::VaeHalf::kDecoder ? "wan.vae_decoder" : "wan.vae_encoder"; }

  const vae::AutoencoderKLWan& model() const { return *model_; }
  // Over several ranks, as the topology says; the ranks themselves are only there where the stage can run.
  bool sharesImages() const { return spatial_ > 1; }
  // The ranks that share an image; one, if the stage is alone.
  mesh::ProcessGroup& ranks() { return halo_ ? halo_->group() : alone_; }
  // Null if the stage is alone.
  mesh::HaloExchange* halo() { return halo_ ? &*halo_ : nullptr; }
  // The entry of `inputs`: a floating-point tensor [1, channels, T, H, W], nothing empty, but for the rows of a rank
  // that got none. It may have come in token layout.
  StatusOr<at::Tensor> takeVideo(const TensorTree& inputs, const std::string& key, int64_t channels) const;
  // Of the image that the ranks share, in pixels, once it has a row of latents for each of them.
  StatusOr<int64_t> sharedHeight(const SamplingParameters& parameters);
  // The tensor's frames and size are those that the job asked for; `pixels` are frames, height and width.
  static Status checkSize(const SamplingParameters& parameters, const std::string& key, at::IntArrayRef pixels);

 private:
  const vae::VaeHalf half_;
  std::optional<vae::AutoencoderKLWan> model_;
  uint32_t spatial_ = 1;
  mesh::ProcessGroup alone_;
  std::optional<mesh::HaloExchange> halo_;
};

}  // namespace latentd::stages
