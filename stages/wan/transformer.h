#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/tensor_parallel.h"
#include "runtime/base/status.h"
#include "stages/token_video.h"
#include "stages/wan/attention.h"
#include "stages/wan/layers.h"
#include "stages/wan/rope.h"
#include "stages/wan/transformer_block.h"
#include "stages/wan/transformer_config.h"
#include "stages/weights/checkpoint.h"

namespace latentd::stages::wan {

// Which of several ranks with some of the layers each one is.
struct PipelinePart {
  int64_t degree = 1;
  int64_t rank = 0;

  bool first() const { return rank == 0; }
  bool last() const { return rank == degree - 1; }
};

// Text as every block sees it, computed once a job.
struct TextContext {
  std::vector<TextKeyValue> blocks;  // those of this rank
  at::Tensor bias;                   // of the keys, float32; undefined: none
  int64_t batch = 0;
};

// WanTransformer3DModel for text to video (Wan 2.1, each half of Wan 2.2 A14B, and 2.2 5B with a timestep per token).
// Loaded in a 16-bit type it keeps the float32 islands of the reference: time embedding, modulation tables, norms.
// Owner: a stage. Thread: any, immutable. Failure: load() names file, tensor or key; the others may throw c10::Error.
class WanTransformer {
 public:
  struct LoadOptions {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    WeightReader::Progress progress = [](double, const std::string&) {};
    bool check_only = false;  // no weight is read; the model must not run
    // What this rank takes of the model: a part of each layer, and some of the layers.
    mesh::TensorParallel tensor_parallel;
    PipelinePart pipeline;
  };
  // directory: the "transformer" folder of a checkpoint.
  static StatusOr<WanTransformer> load(const std::string& directory, const LoadOptions& options);
  // With its config.json, which the caller has read.
  static StatusOr<WanTransformer> load(const std::string& directory, const TransformerConfig& config,
                                       const LoadOptions& options);

  const TransformerConfig& config() const { return config_; }
  const RopeTable& rope() const { return rope_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  uint64_t weightBytes() const { return weight_bytes_; }
  const PipelinePart& pipeline() const { return pipeline_; }

  // embeddings: [B, rows, text_dim], the rows behind a prompt's last token all zero, as the text encoder pads them.
  // Padding takes part in the cross-attention, but every padded row gives the same key and value: in float32 on a CPU
  // they are one key here, with the logarithm of their number as its bias.
  TextContext textContext(const at::Tensor& embeddings) const;

  // Patches of latents [B, C, F, H, W].
  Grid grid(at::IntArrayRef latents) const;
  // Values of one.
  VideoExtents patch() const;

  // latents: [B or 1, in_channels, F, H, W], a batch of 1 serving every text of the context; timesteps: [1], [B] or
  // [B, tokens]; rotation: rope().rotation(grid(...)). Returns [B, out_channels, F, H, W] in dtype().
  at::Tensor forward(const at::Tensor& latents, const at::Tensor& timesteps, const TextContext& text,
                     const at::Tensor& rotation, const SelfAttention& self_attention) const;
  // forward() of some of the tokens (stages/token_video.h), [B or 1, S, in_channels, values of a patch] -> [B, S,
  // out_channels, values of a patch], any strides. rotation, and timesteps by token, are those of the same tokens. A
  // rank with some of the layers gets tokens if it has the first of them, else what the rank before it made, [B, S,
  // dim], to be consumed; it makes tokens if it has the last.
  at::Tensor forwardTokens(at::Tensor x, const at::Tensor& timesteps, const TextContext& text,
                           const at::Tensor& rotation, const SelfAttention& self_attention) const;

 private:
  WanTransformer(const TransformerConfig& config, const LoadOptions& options);

  void loadWeights(WeightReader& reader, const mesh::TensorParallel& ranks);
  void loadBlocks(const LayerLoader& loader, const mesh::TensorParallel& ranks);
  at::Tensor embedPatches(const at::Tensor& latents) const;
  at::Tensor embedTokens(const at::Tensor& tokens) const;
  at::Tensor runBlocks(at::Tensor x, const at::Tensor& timesteps, const TextContext& text, const at::Tensor& rotation,
                       const SelfAttention& self_attention) const;
  at::Tensor projectTokens(const at::Tensor& x, const at::Tensor& time) const;

  TransformerConfig config_;
  at::ScalarType dtype_;
  at::Device device_;
  PipelinePart pipeline_;
  RopeTable rope_;
  uint64_t weight_bytes_ = 0;

  Linear patch_embedding_;  // a convolution, [dim, C, patch...], whose stride is its kernel
  Linear time_up_;          // float32
  Linear time_down_;        // float32
  Linear time_modulation_;
  Linear text_up_;
  Linear text_down_;
  std::vector<TransformerBlock> blocks_;  // those of this rank
  at::Tensor output_table_;               // [1, 1, 2, dim], float32: shift, scale
  Linear output_;
};

}  // namespace latentd::stages::wan
