#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/spatial_shard.h"
#include "runtime/base/status.h"
#include "stages/vae/decoder.h"
#include "stages/vae/encoder.h"
#include "stages/vae/vae_config.h"
#include "stages/weights/checkpoint.h"

namespace latentd::stages::vae {

// The halves of the autoencoder that are loaded; the other half of the checkpoint is only checked.
enum class VaeHalf {
  kDecoder,
  kEncoder,
  kBoth,
};

// AutoencoderKLWan of a diffusers directory: Wan 2.1's, and Wan 2.2's residual one. Batches are one video. Ranks may
// share one in height shards: each gives and gets its own rows, and all take the same steps.
// Owner: a stage. Thread: any, immutable; what a decode or encode in progress remembers is in its own object, so
// several may be under way. Failure: load() names file, tensor or key; all may throw c10::Error, for want of memory or
// of a device.
class AutoencoderKLWan {
 public:
  struct LoadOptions {
    VaeHalf half = VaeHalf::kBoth;
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    WeightReader::Progress progress = [](double, const std::string&) {};
    bool check_only = false;  // no weight is read; the model must not run
  };
  // directory: the "vae" folder of a checkpoint.
  static StatusOr<AutoencoderKLWan> load(const std::string& directory, const LoadOptions& options);

  // A decode in progress: one latent frame at a time, so that the first frames leave before the last are made.
  // Owner: its caller; the autoencoder must outlive it. Thread: one. States: next() until done().
  class Decoding {
   public:
    bool done() const { return next_ == frames(); }
    int64_t chunks() const { return frames(); }
    // The next frames, [T, H, W, 3] in [-1, 1]: one at first, then VaeConfig::temporalFactor() at a time.
    at::Tensor next() { return model_.toPixels(nextPatched()); }
    // The same before toPixels().
    at::Tensor nextPatched();

   private:
    friend class AutoencoderKLWan;
    Decoding(const AutoencoderKLWan& model, at::Tensor latents, const mesh::SpatialShard* shard)
        : model_(model), latents_(std::move(latents)), cache_(shard) {}
    int64_t frames() const { return latents_.size(0); }

    const AutoencoderKLWan& model_;
    at::Tensor latents_;  // after post_quant_conv
    FeatureCache cache_;
    int64_t next_ = 0;
  };

  // An encode in progress, one latent frame at a time: the first frame, then four at a time; frames past 1 + 4k are
  // dropped, as the reference does.
  // Owner: its caller; the autoencoder must outlive it. Thread: one. States: next() until done(), then moments().
  class Encoding {
   public:
    // Of a video of that many frames.
    static int64_t chunks(int64_t frames);
    bool done() const { return next_ == chunks_; }
    void next();
    // Means, then log variances, [1, 2 * z, T, H, W].
    at::Tensor moments() const;

   private:
    friend class AutoencoderKLWan;
    Encoding(const AutoencoderKLWan& model, at::Tensor frames, const mesh::SpatialShard* shard);

    const AutoencoderKLWan& model_;
    at::Tensor frames_;  // patched
    FeatureCache cache_;
    int64_t chunks_;
    int64_t next_ = 0;
    std::vector<at::Tensor> parts_;
  };

  // latents: [1, z, T, H, W], as the decoder takes them (see denormalise), on any device, of any floating type. With a
  // shard, which outlives the decode, H is of this rank's rows, and so are the frames.
  Decoding decode(const at::Tensor& latents, const mesh::SpatialShard* shard = nullptr) const;
  // video: [1, 3, T, H, W] in [-1, 1]; height and width are multiples of VaeConfig::spatialFactor(). A shard as above.
  Encoding encode(const at::Tensor& video, const mesh::SpatialShard* shard = nullptr) const;
  // What the decoder leaves, [T, H, W, C] of patches, as pixels [T, H, W, 3] in [-1, 1].
  at::Tensor toPixels(const at::Tensor& patched) const;
  // The mode of the distribution: its means, [1, z, T, H, W].
  at::Tensor mode(const at::Tensor& moments) const;

  // The denoiser's latents as the decoder takes them: x / (1 / std) + mean, each operation rounded to the model's type.
  at::Tensor denormalise(const at::Tensor& latents) const;
  // The encoder's latents as the denoiser takes them: (x - mean) * (1 / std).
  at::Tensor normalise(const at::Tensor& latents) const;

  const VaeConfig& config() const { return config_; }
  at::Device device() const { return options_.device(); }
  at::ScalarType dtype() const { return options_.dtype().toScalarType(); }
  const Decoder& decoder() const { return *decoder_; }
  uint64_t weightBytes() const { return weight_bytes_; }

 private:
  AutoencoderKLWan() = default;
  at::Tensor toModel(const at::Tensor& video) const;

  VaeConfig config_;
  at::TensorOptions options_;
  std::optional<Decoder> decoder_;
  std::optional<Encoder> encoder_;
  PointwiseConvolution quant_conv_;
  PointwiseConvolution post_quant_conv_;
  at::Tensor mean_;         // [1, z, 1, 1, 1]
  at::Tensor inverse_std_;  // [1, z, 1, 1, 1]
  uint64_t weight_bytes_ = 0;
};

}  // namespace latentd::stages::vae
