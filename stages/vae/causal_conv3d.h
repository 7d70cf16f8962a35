#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include <ATen/core/Tensor.h>

#include "mesh/spatial_shard.h"
#include "stages/vae/convolution.h"

namespace latentd::stages::vae {

// What the causal convolutions of one half of the autoencoder remember of the chunks before: per convolution, in the
// order in which they run, the last frames of its input. A slot that is not yet defined stands for frames of zeros.
// Where the image is in height shards, it is of this rank's rows, and knows how the others are reached.
// Owner: one decode or encode in progress; the shard outlives it. Thread: one. States: beginChunk() before each chunk;
// every chunk takes the same slots in the same order.
class FeatureCache {
 public:
  FeatureCache() = default;
  explicit FeatureCache(const mesh::SpatialShard* shard) : shard_(shard) {}

  // Null: the rows are the whole image's.
  const mesh::SpatialShard* shard() const { return shard_; }
  void beginChunk();
  bool isFirstChunk() const { return chunk_ == 0; }
  // The slot of the next convolution. References stay valid.
  at::Tensor& nextSlot();
  size_t slots() const { return slots_.size(); }
  uint64_t bytes() const;

 private:
  const mesh::SpatialShard* shard_ = nullptr;
  std::deque<at::Tensor> slots_;
  size_t next_ = 0;
  int64_t chunk_ = -1;  // counts from 0 with the first beginChunk()
};

// A convolution that sees, in time, only its frame and those before, some of which came with earlier chunks.
// Owner: its block. Thread: any, immutable; what it remembers is in the cache. Failure: may throw c10::Error.
class CausalConv3d {
 public:
  // The input of one call: the remembered frames are already in front, `chunk` is for the caller to fill. It is made
  // before what it holds, so that the layer in front writes straight into it. In a height shard the frames have a halo:
  // rows above and below, which come from the neighbours once the chunk is complete.
  struct Input {
    at::Tensor whole;
    at::Tensor frames;  // a view of the frames of this chunk
    at::Tensor chunk;   // a view of those without their halo; each frame of it is dense
    at::Tensor* slot = nullptr;
    const mesh::SpatialShard* shard = nullptr;  // null: no halo
  };

  CausalConv3d() = default;
  // Kernel `kernel` in time and `spatial` in height and width, which is padded to keep the size. `history` is the
  // number of frames remembered; with a time stride it is less than kernel - 1.
  struct Shape {
    int64_t in = 0;
    int64_t out = 0;
    int64_t kernel = 3;
    int64_t spatial = 3;
    int64_t time_stride = 1;
    int64_t history = 2;
  };
  static CausalConv3d load(const LayerLoader& loader, const Shape& shape);

  Input prepare(FeatureCache& cache, at::IntArrayRef chunk_shape, const at::TensorOptions& options) const;
  // Both remember the last frames for the next chunk.
  at::Tensor forward(const Input& input) const;
  void addTo(const at::Tensor& sum, const Input& input) const;

  // prepare() and forward() for an input that exists.
  at::Tensor forward(FeatureCache& cache, const at::Tensor& chunk) const;
  // Remembers a chunk that the convolution is not applied to.
  void remember(FeatureCache& cache, const at::Tensor& chunk) const;

 private:
  // Everything that the convolution reads is there afterwards, and remembered.
  Borders complete(const Input& input) const;
  void remember(const at::Tensor& whole, at::Tensor& slot) const;

  Convolution convolution_;
  int64_t history_ = 0;
  int64_t halo_ = 0;  // rows beyond its own that a pixel is made of, above and below
};

}  // namespace latentd::stages::vae
