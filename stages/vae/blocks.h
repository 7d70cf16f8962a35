#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/spatial_shard.h"
#include "stages/vae/causal_conv3d.h"
#include "stages/vae/norm.h"

namespace latentd::stages::vae {

// The blocks that encoder and decoder share. Each takes its input by value and may overwrite it: a caller that needs
// the input afterwards clones it. All are immutable after load(), owned by their half of the autoencoder, usable from
// any thread, and may throw c10::Error.

// Two causal convolutions, each behind a norm and SiLU, around a shortcut.
class ResidualBlock {
 public:
  static ResidualBlock load(const LayerLoader& loader, int64_t in, int64_t out);
  at::Tensor forward(at::Tensor input, FeatureCache& cache) const;

 private:
  RmsNorm norm1_;
  RmsNorm norm2_;
  CausalConv3d conv1_;
  CausalConv3d conv2_;
  std::optional<PointwiseConvolution> shortcut_;  // where the channels change
};

// Self-attention among the pixels of each frame, one head of all channels. In a height shard each rank has the queries
// of its own rows, and the keys and values of all.
class AttentionBlock {
 public:
  static AttentionBlock load(const LayerLoader& loader, int64_t channels);
  // shard: null where the rows are the whole image's.
  at::Tensor forward(at::Tensor input, const mesh::SpatialShard* shard) const;

 private:
  RmsNorm norm_;
  PointwiseConvolution qkv_;
  PointwiseConvolution projection_;
};

// Residual, attention, residual.
class MidBlock {
 public:
  static MidBlock load(const LayerLoader& loader, int64_t channels);
  at::Tensor forward(at::Tensor input, FeatureCache& cache) const;

 private:
  ResidualBlock first_;
  AttentionBlock attention_;
  ResidualBlock second_;
};

// The last layers of both halves: norm, SiLU, causal convolution.
class Head {
 public:
  // "norm_out" and "conv_out" under `loader`.
  static Head load(const LayerLoader& loader, int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& input, FeatureCache& cache) const;

 private:
  RmsNorm norm_;
  CausalConv3d conv_;
};

// A residual or an attention block.
class Layer {
 public:
  Layer(ResidualBlock block) : block_(std::move(block)) {}   // NOLINT: implicit, so that lists of layers read well
  Layer(AttentionBlock block) : block_(std::move(block)) {}  // NOLINT
  at::Tensor forward(at::Tensor input, FeatureCache& cache) const;

 private:
  std::variant<ResidualBlock, AttentionBlock> block_;
};

}  // namespace latentd::stages::vae
