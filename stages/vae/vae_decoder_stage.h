#pragma once

#include <string>
#include <vector>

#include "stages/vae/vae_stage.h"

namespace latentd::stages {

// "wan.vae_decoder". Method "decode": the denoiser's "latents" [1, z, T, H, W] become RGB frames, which leave through
// RunContext::frames() chunk by chunk; a step is one latent frame.
// Owner, Thread, States, Failure: as Stage.
class VaeDecoderStage : public VaeStage {
 public:
  VaeDecoderStage() : VaeStage(vae::VaeHalf::kDecoder) {}

  Status warmUp() override;
  std::vector<MethodSpec> methods() const override;
  StatusOr<TensorTree> run(const std::string& method, const SamplingParameters& parameters, const TensorTree& inputs,
                           RunContext& context) override;
};

}  // namespace latentd::stages
