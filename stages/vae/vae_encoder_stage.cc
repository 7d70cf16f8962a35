#include "stages/vae/vae_encoder_stage.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <utility>

#include "stages/device/step_pacer.h"
#include "stages/stage_checks.h"

namespace latentd::stages {
namespace {

constexpr const char* kEncode = "encode";
constexpr const char* kVideo = "video";
constexpr const char* kLatents = "latents";

}  // namespace

Status VaeEncoderStage::warmUp() {
  // The first, the second and the later chunks each run convolutions of other shapes.
  constexpr int64_t kLatentFrames = 3;
  const vae::VaeConfig& config = model().config();
  const int64_t size = config.spatialFactor();
  auto encoding = model().encode(at::zeros({1, config.imageChannels(), config.frames(kLatentFrames), size, size}));
  while (!encoding.done())
    encoding.next();
  model().normalise(model().mode(encoding.moments()));
  return absl::OkStatus();
}

std::vector<MethodSpec> VaeEncoderStage::methods() const {
  return {{.name = kEncode, .inputs = {kVideo}, .outputs = {kLatents}, .emits_frames = false}};
}

Status VaeEncoderStage::checkVideo(const SamplingParameters& parameters, const at::Tensor& video) const {
  LATENTD_RETURN_IF_ERROR(checkSize(parameters, kVideo, video.sizes().slice(2)));
  const vae::VaeConfig& config = model().config();
  const int64_t frames = video.size(2);
  if (config.frames(config.latentFrames(frames)) != frames) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" has {} frames; expected 1 + {}k, such as {}", kVideo,
                                                  frames, config.temporalFactor(),
                                                  config.frames(config.latentFrames(frames))));
  }
  const int64_t multiple = config.spatialFactor();
  if (video.size(3) % multiple != 0 || video.size(4) % multiple != 0) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" is {}x{} pixels; expected multiples of {}", kVideo,
                                                  video.size(4), video.size(3), multiple));
  }
  return absl::OkStatus();
}

StatusOr<TensorTree> VaeEncoderStage::run(const std::string& method, const SamplingParameters& parameters,
                                          const TensorTree& inputs, RunContext& context) {
  if (method != kEncode) return unknownMethod(*this, method);
  LATENTD_ASSIGN_OR_RETURN(const at::Tensor video, takeVideo(inputs, kVideo, model().config().imageChannels()));
  LATENTD_RETURN_IF_ERROR(checkVideo(parameters, video));
  auto encoding = model().encode(video);
  const auto steps = static_cast<uint32_t>(encoding.chunks());
  StepPacer pacer(context, model().device(), steps);
  for (uint32_t step = 0; step < steps; ++step) {
    LATENTD_RETURN_IF_ERROR(pacer.begin(step));
    encoding.next();
    LATENTD_RETURN_IF_ERROR(pacer.submitted());
  }
  at::Tensor latents = model().normalise(model().mode(encoding.moments())).to(at::kFloat);
  LATENTD_RETURN_IF_ERROR(pacer.finish());
  TensorTree::Dict outputs;
  outputs.entries.emplace_back(kLatents, TensorTree(TensorTree::Value(std::move(latents))));
  return TensorTree(TensorTree::Value(std::move(outputs)));
}

}  // namespace latentd::stages
