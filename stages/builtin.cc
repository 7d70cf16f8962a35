#include "stages/builtin.h"

#include <memory>

#include "stages/noop/noop_stage.h"
#include "stages/text/text_encoder_stage.h"
#include "stages/vae/vae_decoder_stage.h"
#include "stages/vae/vae_encoder_stage.h"
#include "stages/wan/denoiser.h"

namespace latentd::stages {

void registerBuiltinStages(StageRegistry& registry) {
  registry.add("noop", [] { return std::make_unique<NoopStage>(); });
  registry.add("wan.text_encoder", [] { return std::make_unique<TextEncoderStage>(); });
  registry.add("wan.denoiser", [] { return std::make_unique<WanDenoiser>(); });
  registry.add("wan.vae_decoder", [] { return std::make_unique<VaeDecoderStage>(); });
  registry.add("wan.vae_encoder", [] { return std::make_unique<VaeEncoderStage>(); });
}

}  // namespace latentd::stages
