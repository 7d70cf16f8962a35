#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "stages/stage.h"
#include "stages/vae/autoencoder_kl_wan.h"

namespace latentd::stages {

// What the decoder and the encoder stage have in common: loading "vae" of a checkpoint, and its limits.
// Owner: the worker. Thread: the executor's. States: as Stage. Failure: as Stage.
class VaeStage : public Stage {
 public:
  Status load(const LoadContext& context) override;
  ModelLimits limits() const override;
  uint64_t weightBytes() const override { return model_->weightBytes(); }

 protected:
  explicit VaeStage(vae::VaeHalf half) : half_(half) {}

  const vae::AutoencoderKLWan& model() const { return *model_; }
  // The entry of `inputs`: a floating-point tensor [1, channels, T, H, W], nothing empty.
  StatusOr<at::Tensor> takeVideo(const TensorTree& inputs, const std::string& key, int64_t channels) const;
  // The tensor's frames and size are those that the job asked for; `pixels` are frames, height and width.
  static Status checkSize(const SamplingParameters& parameters, const std::string& key, at::IntArrayRef pixels);

 private:
  const vae::VaeHalf half_;
  std::optional<vae::AutoencoderKLWan> model_;
};

}  // namespace latentd::stages
