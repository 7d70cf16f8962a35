#include "stages/vae/vae_decoder_stage.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/status_field.h"
#include "stages/device/step_pacer.h"
#include "stages/device/transfer.h"
#include "stages/stage_checks.h"
#include "stages/vae/tiled_decoding.h"

namespace latentd::stages {

class VaeDecoderStage::Chunks {
 public:
  virtual ~Chunks() = default;
  virtual int64_t count() const = 0;
  // The next chunk; every rank takes part. The frames to hand on, [T, H, W, 3] in [-1, 1], or an undefined tensor where
  // this rank has none.
  virtual StatusOr<at::Tensor> next() = 0;
};

namespace {

constexpr const char* kDecode = "decode";
constexpr const char* kLatents = "latents";
constexpr const char* kTileHeight = "tile_height";
constexpr const char* kTileWidth = "tile_width";
constexpr const char* kTileOverlap = "tile_overlap";
// Pixels; beyond any video.
constexpr int64_t kTileMax = 65536;

// Images are decoded whole, or this rank's rows of them.
class ImageChunks final : public VaeDecoderStage::Chunks {
 public:
  ImageChunks(const vae::AutoencoderKLWan& model, mesh::HaloExchange* halo, at::Tensor latents, int64_t height)
      : model_(model), halo_(halo), latents_(std::move(latents)), height_(height) {}

  int64_t count() const override { return latents_.size(2); }

  StatusOr<at::Tensor> next() override {
    if (!decoding_) LATENTD_RETURN_IF_ERROR(begin());
    const at::Tensor rows = decoding_->next();
    return shard_ ? shard_->gatherTo(0, rows, 1) : rows;
  }

 private:
  Status begin() {
    at::Tensor latents = latents_;
    if (halo_ != nullptr) {
      LATENTD_ASSIGN_OR_RETURN(shard_, mesh::SpatialShard::agree(*halo_, model_.device(), latents.size(3), height_, 1));
      latents = shard_->slice(latents, 3, 1);
    }
    decoding_.emplace(model_.decode(model_.denormalise(latents), shard_ ? &*shard_ : nullptr));
    return absl::OkStatus();
  }

  const vae::AutoencoderKLWan& model_;
  mesh::HaloExchange* halo_;  // null: no other rank
  const at::Tensor latents_;
  const int64_t height_;  // of the whole image, in latents
  std::optional<mesh::SpatialShard> shard_;
  std::optional<vae::AutoencoderKLWan::Decoding> decoding_;
};

class TileChunks final : public VaeDecoderStage::Chunks {
 public:
  explicit TileChunks(vae::TiledDecoding decoding) : decoding_(std::move(decoding)) {}

  int64_t count() const override { return decoding_.chunks(); }
  StatusOr<at::Tensor> next() override { return decoding_.next(); }

 private:
  vae::TiledDecoding decoding_;
};

OptionTable<vae::Tiling> tilingOptions() {
  using vae::Tiling;
  return {
      integerOption(kTileHeight, &Tiling::height, 0, kTileMax, "0",
                    "Height of a tile in pixels. Images larger than a tile are decoded tile by tile, which takes the "
                    "memory of one tile and of the frames; 0 decodes whole images."),
      integerOption(kTileWidth, &Tiling::width, 0, kTileMax, "0", "Width of a tile in pixels."),
      integerOption(kTileOverlap, &Tiling::overlap, 0, kTileMax, "64",
                    "Pixels over which neighbouring tiles are blended, at most half of either side.",
                    {"options.tile_height"}),
  };
}

// In pixels, to latents.
StatusOr<vae::Tiling> inLatents(const vae::Tiling& pixels, int64_t scale) {
  const auto refuse = [](const char* option, const std::string& text) {
    return atField(absl::InvalidArgumentError(fmt::format("option {}: {}", option, text)),
                   fmt::format("options.{}", option));
  };
  if ((pixels.height == 0) != (pixels.width == 0)) {
    const char* missing = pixels.height == 0 ? kTileHeight : kTileWidth;
    return refuse(missing, fmt::format("give both {} and {}, or neither", kTileHeight, kTileWidth));
  }
  if (pixels.height == 0) return vae::Tiling{};
  const std::pair<const char*, int64_t> sizes[] = {
      {kTileHeight, pixels.height}, {kTileWidth, pixels.width}, {kTileOverlap, pixels.overlap}};
  for (const auto& [option, size] : sizes) {
    if (size % scale != 0) {
      return refuse(option, fmt::format("{} pixels, expected a multiple of {}; nearest: {}", size, scale,
                                        std::max(size + scale / 2, scale) / scale * scale));
    }
  }
  if (const int64_t most = std::min(pixels.height, pixels.width) / 2; pixels.overlap > most) {
    return refuse(kTileOverlap, fmt::format("{} pixels, expected at most half of a tile's height and width, {}",
                                            pixels.overlap, most / scale * scale));
  }
  return vae::Tiling{.height = pixels.height / scale, .width = pixels.width / scale, .overlap = pixels.overlap / scale};
}

// [-1, 1] in the model's type to what a display takes, on its way to the host; rounded as the reference rounds.
at::Tensor toRgb(const at::Tensor& frames) {
  return toPinnedHost(frames.mul(0.5).add_(0.5).clamp_(0.0, 1.0).to(at::kFloat).contiguous());
}

}  // namespace

Status VaeDecoderStage::load(const LoadContext& context) {
  LATENTD_ASSIGN_OR_RETURN(const vae::Tiling pixels,
                           parseOptions(name(), tilingOptions(), context.options, {.overlap = 64}));
  LATENTD_RETURN_IF_ERROR(loadModel(context));
  LATENTD_ASSIGN_OR_RETURN(tiling_, inLatents(pixels, model().config().spatialFactor()));
  return absl::OkStatus();
}

std::vector<OptionSpec> VaeDecoderStage::options() const { return describeOptions(tilingOptions()); }

std::unique_ptr<VaeDecoderStage::Chunks> VaeDecoderStage::chunksOf(const at::Tensor& latents, int64_t height) {
  if (tiling_.cuts(height, latents.size(4))) {
    return std::make_unique<TileChunks>(
        vae::TiledDecoding(model(), model().denormalise(latents), tiling_, mesh::TileShare(ranks())));
  }
  return std::make_unique<ImageChunks>(model(), halo(), latents, height);
}

Status VaeDecoderStage::warmUp() {
  // Three latent frames: the first, the second and the later ones each run convolutions of other shapes.
  constexpr int64_t kFrames = 3;
  constexpr int64_t kSize = 2;
  const int64_t height = std::max<int64_t>(kSize, ranks().size());
  const auto chunks = chunksOf(at::zeros({1, model().config().z_dim, kFrames, height, kSize}), height);
  for (int64_t chunk = 0; chunk < chunks->count(); ++chunk)
    LATENTD_RETURN_IF_ERROR(chunks->next().status());
  return absl::OkStatus();
}

std::vector<MethodSpec> VaeDecoderStage::methods() const {
  // Tiles lie anywhere in an image: ranks that share them need all of it.
  const bool by_rows = sharesImages() && tiling_.height == 0;
  MethodSpec decode{.name = kDecode, .inputs = {kLatents}, .outputs = {}, .emits_frames = true};
  decode.token_inputs = {{kLatents, by_rows ? TokenCut::kRows : TokenCut::kNone}};
  if (by_rows) decode.sliced_input_dims = {kHeightDim};
  return {std::move(decode)};
}

StatusOr<TensorTree> VaeDecoderStage::run(const std::string& method, const SamplingParameters& parameters,
                                          const TensorTree& inputs, RunContext& context) {
  if (method != kDecode) return unknownMethod(*this, method);
  LATENTD_ASSIGN_OR_RETURN(const at::Tensor latents, takeVideo(inputs, kLatents, model().config().z_dim));
  const int64_t scale = model().config().spatialFactor();
  int64_t height = latents.size(3);
  if (halo() != nullptr && !tiling_.cuts(parameters.height / scale, latents.size(4))) {
    // Rows of one rank may be fewer; that all of them add up is found when they meet, in the first step.
    LATENTD_ASSIGN_OR_RETURN(height, sharedHeight(parameters));
    height /= scale;
  }
  LATENTD_RETURN_IF_ERROR(checkSize(
      parameters, kLatents, {model().config().frames(latents.size(2)), height * scale, latents.size(4) * scale}));
  const bool leads = ranks().rank() == 0;
  FrameSink* sink = context.frames();
  if (leads && sink == nullptr) {
    return absl::InvalidArgumentError("method \"decode\" emits frames: give it a frame sink");
  }
  const auto chunks = chunksOf(latents, height);
  const auto steps = static_cast<uint32_t>(chunks->count());
  StepPacer pacer(context, model().device(), steps);
  for (uint32_t step = 0; step < steps; ++step) {
    LATENTD_RETURN_IF_ERROR(pacer.begin(step));
    LATENTD_ASSIGN_OR_RETURN(const at::Tensor frames, chunks->next());
    StepPacer::Delivery deliver;
    if (frames.defined()) deliver = [sink, rgb = toRgb(frames)] { return sink->write(rgb); };
    LATENTD_RETURN_IF_ERROR(pacer.submitted(std::move(deliver)));
  }
  LATENTD_RETURN_IF_ERROR(pacer.finish());
  return TensorTree(TensorTree::Value(TensorTree::Dict{}));
}

}  // namespace latentd::stages
