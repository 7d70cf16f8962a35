#include "stages/vae/vae_decoder_stage.h"

#include <ATen/ops/zeros.h>

#include "stages/device/step_pacer.h"
#include "stages/device/transfer.h"
#include "stages/stage_checks.h"

namespace latentd::stages {
namespace {

constexpr const char* kDecode = "decode";
constexpr const char* kLatents = "latents";

// [-1, 1] in the model's type to what a display takes, on its way to the host; rounded as the reference rounds.
at::Tensor toRgb(const at::Tensor& frames) {
  return toPinnedHost(frames.mul(0.5).add_(0.5).clamp_(0.0, 1.0).to(at::kFloat).contiguous());
}

}  // namespace

Status VaeDecoderStage::warmUp() {
  // Three latent frames: the first, the second and the later ones each run convolutions of other shapes.
  constexpr int64_t kFrames = 3;
  constexpr int64_t kSize = 2;
  auto decoding = model().decode(at::zeros({1, model().config().z_dim, kFrames, kSize, kSize}));
  while (!decoding.done())
    decoding.next();
  return absl::OkStatus();
}

std::vector<MethodSpec> VaeDecoderStage::methods() const {
  return {{.name = kDecode, .inputs = {kLatents}, .outputs = {}, .emits_frames = true}};
}

StatusOr<TensorTree> VaeDecoderStage::run(const std::string& method, const SamplingParameters& parameters,
                                          const TensorTree& inputs, RunContext& context) {
  if (method != kDecode) return unknownMethod(*this, method);
  LATENTD_ASSIGN_OR_RETURN(const at::Tensor latents, takeVideo(inputs, kLatents, model().config().z_dim));
  const int64_t scale = model().config().spatialFactor();
  LATENTD_RETURN_IF_ERROR(
      checkSize(parameters, kLatents,
                {model().config().frames(latents.size(2)), latents.size(3) * scale, latents.size(4) * scale}));
  FrameSink* sink = context.frames();
  if (sink == nullptr) return absl::InvalidArgumentError("method \"decode\" emits frames: give it a frame sink");
  auto decoding = model().decode(model().denormalise(latents));
  const auto steps = static_cast<uint32_t>(decoding.chunks());
  StepPacer pacer(context, model().device(), steps);
  for (uint32_t step = 0; step < steps; ++step) {
    LATENTD_RETURN_IF_ERROR(pacer.begin(step));
    LATENTD_RETURN_IF_ERROR(pacer.submitted([sink, rgb = toRgb(decoding.next())] { return sink->write(rgb); }));
  }
  LATENTD_RETURN_IF_ERROR(pacer.finish());
  return TensorTree(TensorTree::Value(TensorTree::Dict{}));
}

}  // namespace latentd::stages
