#include "stages/vae/vae_encoder_stage.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "stages/device/step_pacer.h"
#include "stages/stage_checks.h"

namespace latentd::stages {
namespace {

constexpr const char* kEncode = "encode";
constexpr const char* kVideo = "video";
constexpr const char* kLatents = "latents";

}  // namespace

Status VaeEncoderStage::load(const LoadContext& context) {
  struct NoOptions {};
  LATENTD_RETURN_IF_ERROR(parseOptions<NoOptions>(name(), {}, context.options).status());
  return loadModel(context);
}

Status VaeEncoderStage::warmUp() {
  // The first, the second and the later chunks each run convolutions of other shapes.
  constexpr int64_t kLatentFrames = 3;
  const vae::VaeConfig& config = model().config();
  const int64_t size = config.spatialFactor();
  const int64_t height = size * ranks().size();
  return encode(at::zeros({1, config.imageChannels(), config.frames(kLatentFrames), height, size}), height, nullptr)
      .status();
}

std::vector<MethodSpec> VaeEncoderStage::methods() const {
  MethodSpec encode{.name = kEncode, .inputs = {kVideo}, .outputs = {kLatents}, .emits_frames = false};
  if (sharesImages()) encode.sliced_input_dims = {kHeightDim};
  return {std::move(encode)};
}

Status VaeEncoderStage::checkVideo(const SamplingParameters& parameters, const at::Tensor& video,
                                   int64_t height) const {
  LATENTD_RETURN_IF_ERROR(checkSize(parameters, kVideo, {video.size(2), height, video.size(4)}));
  const vae::VaeConfig& config = model().config();
  const int64_t frames = video.size(2);
  if (config.frames(config.latentFrames(frames)) != frames) {
    return absl::InvalidArgumentError(fmt::format("input \"{}\" has {} frames; expected 1 + {}k, such as {}", kVideo,
                                                  frames, config.temporalFactor(),
                                                  config.frames(config.latentFrames(frames))));
  }
  const int64_t multiple = config.spatialFactor();
  if (height % multiple != 0 || video.size(4) % multiple != 0) {
    return absl::InvalidArgumentError(
        fmt::format("input \"{}\" is {}x{} pixels; expected multiples of {}", kVideo, video.size(4), height, multiple));
  }
  return absl::OkStatus();
}

StatusOr<at::Tensor> VaeEncoderStage::encode(const at::Tensor& video, int64_t height, StepPacer* pacer) {
  std::optional<mesh::SpatialShard> shard;
  std::optional<vae::AutoencoderKLWan::Encoding> encoding;
  const auto begin = [&]() -> Status {
    at::Tensor rows = video;
    if (halo() != nullptr) {
      const int64_t unit = model().config().spatialFactor();
      LATENTD_ASSIGN_OR_RETURN(shard,
                               mesh::SpatialShard::agree(*halo(), model().device(), video.size(3), height, unit));
      rows = shard->slice(video, 3, unit);
    }
    encoding.emplace(model().encode(rows, shard ? &*shard : nullptr));
    return absl::OkStatus();
  };
  for (uint32_t step = 0; !encoding || !encoding->done(); ++step) {
    if (pacer != nullptr) LATENTD_RETURN_IF_ERROR(pacer->begin(step));
    if (!encoding) LATENTD_RETURN_IF_ERROR(begin());
    encoding->next();
    if (pacer != nullptr) LATENTD_RETURN_IF_ERROR(pacer->submitted());
  }
  const at::Tensor latents = model().normalise(model().mode(encoding->moments())).to(at::kFloat);
  return shard ? shard->gather(latents, 3) : latents;
}

StatusOr<TensorTree> VaeEncoderStage::run(const std::string& method, const SamplingParameters& parameters,
                                          const TensorTree& inputs, RunContext& context) {
  if (method != kEncode) return unknownMethod(*this, method);
  LATENTD_ASSIGN_OR_RETURN(const at::Tensor video, takeVideo(inputs, kVideo, model().config().imageChannels()));
  int64_t height = video.size(3);
  if (halo() != nullptr) {
    // Rows of one rank may be fewer; that all of them add up is found when they meet, in the first step.
    LATENTD_ASSIGN_OR_RETURN(height, sharedHeight(parameters));
  }
  LATENTD_RETURN_IF_ERROR(checkVideo(parameters, video, height));
  StepPacer pacer(context, model().device(),
                  static_cast<uint32_t>(vae::AutoencoderKLWan::Encoding::chunks(video.size(2))));
  LATENTD_ASSIGN_OR_RETURN(at::Tensor latents, encode(video, height, &pacer));
  LATENTD_RETURN_IF_ERROR(pacer.finish());
  TensorTree::Dict outputs;
  outputs.entries.emplace_back(kLatents, TensorTree(TensorTree::Value(std::move(latents))));
  return TensorTree(TensorTree::Value(std::move(outputs)));
}

}  // namespace latentd::stages
