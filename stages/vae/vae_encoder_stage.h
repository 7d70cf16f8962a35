#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stages/device/step_pacer.h"
#include "stages/vae/vae_stage.h"

namespace latentd::stages {

// "wan.vae_encoder". Method "encode": "video" [1, 3, T, H, W] in [-1, 1] becomes the denoiser's "latents"
// [1, z, T', H', W'], float32: the mode of the distribution, normalised, whole on every rank. A step is one latent
// frame.
// Owner, Thread, States, Failure: as Stage.
class VaeEncoderStage : public VaeStage {
 public:
  VaeEncoderStage() : VaeStage(vae::VaeHalf::kEncoder) {}

  Status load(const LoadContext& context) override;
  Status warmUp() override;
  std::vector<MethodSpec> methods() const override;
  StatusOr<TensorTree> run(const std::string& method, const SamplingParameters& parameters, const TensorTree& inputs,
                           RunContext& context) override;

 private:
  // `height`: of the whole video.
  Status checkVideo(const SamplingParameters& parameters, const at::Tensor& video, int64_t height) const;
  // video: all, or this rank's rows, of `height`. Paced where there is a pacer.
  StatusOr<at::Tensor> encode(const at::Tensor& video, int64_t height, StepPacer* pacer);
};

}  // namespace latentd::stages
