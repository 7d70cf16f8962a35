#pragma once

#include <string>
#include <vector>

#include "stages/vae/vae_stage.h"

namespace latentd::stages {

// "wan.vae_encoder". Method "encode": "video" [1, 3, T, H, W] in [-1, 1] becomes the denoiser's "latents"
// [1, z, T', H', W'], float32: the mode of the distribution, normalised. A step is one latent frame.
// Owner, Thread, States, Failure: as Stage.
class VaeEncoderStage : public VaeStage {
 public:
  VaeEncoderStage() : VaeStage(vae::VaeHalf::kEncoder) {}

  Status warmUp() override;
  std::vector<MethodSpec> methods() const override;
  StatusOr<TensorTree> run(const std::string& method, const SamplingParameters& parameters, const TensorTree& inputs,
                           RunContext& context) override;

 private:
  Status checkVideo(const SamplingParameters& parameters, const at::Tensor& video) const;
};

}  // namespace latentd::stages
