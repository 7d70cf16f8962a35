#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stages/vae/tiling.h"
#include "stages/vae/vae_stage.h"

namespace latentd::stages {

// "wan.vae_decoder". Method "decode": the denoiser's "latents" [1, z, T, H, W] become RGB frames, which leave the first
// rank through RunContext::frames() chunk by chunk; a step is one latent frame.
//
// Over ranks (spatial) each decodes the rows of a height shard (see VaeStage). Or, with the options tile_height,
// tile_width and tile_overlap (pixels), images larger than a tile are decoded tile by tile, which needs the memory of
// one tile: a step is then one latent frame of one tile, frames leave during the last one, and ranks share the tiles;
// every rank needs the whole latents then.
// Owner, Thread, States, Failure: as Stage.
class VaeDecoderStage : public VaeStage {
 public:
  // How the latents of one job become frames.
  class Chunks;

  VaeDecoderStage() : VaeStage(vae::VaeHalf::kDecoder) {}

  Status load(const LoadContext& context) override;
  Status warmUp() override;
  std::vector<MethodSpec> methods() const override;
  std::vector<OptionSpec> options() const override;
  StatusOr<TensorTree> run(const std::string& method, const SamplingParameters& parameters, const TensorTree& inputs,
                           RunContext& context) override;

 private:
  // latents: all, or this rank's rows, of `height` rows.
  std::unique_ptr<Chunks> chunksOf(const at::Tensor& latents, int64_t height);

  vae::Tiling tiling_;
};

}  // namespace latentd::stages
