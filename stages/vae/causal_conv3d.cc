#include "stages/vae/causal_conv3d.h"

#include <ATen/ops/empty.h>

#include "runtime/base/check.h"

namespace latentd::stages::vae {

void FeatureCache::beginChunk() {
  LATENTD_CHECK(chunk_ < 0 || next_ == slots_.size(), "a chunk ran another number of causal convolutions than before");
  next_ = 0;
  ++chunk_;
}

at::Tensor& FeatureCache::nextSlot() {
  LATENTD_CHECK(chunk_ >= 0, "beginChunk() comes first");
  if (isFirstChunk()) slots_.emplace_back();
  LATENTD_CHECK(next_ < slots_.size(), "a chunk ran more causal convolutions than the first one");
  return slots_[next_++];
}

uint64_t FeatureCache::bytes() const {
  uint64_t bytes = 0;
  for (const at::Tensor& slot : slots_) {
    if (slot.defined()) bytes += slot.nbytes();
  }
  return bytes;
}

CausalConv3d CausalConv3d::load(const LayerLoader& loader, const Shape& shape) {
  CausalConv3d layer;
  const int64_t padding = shape.spatial / 2;
  layer.convolution_ = Convolution::load(loader, {.in = shape.in,
                                                  .out = shape.out,
                                                  .kernel = {shape.kernel, shape.spatial, shape.spatial},
                                                  .stride = {shape.time_stride, 1, 1},
                                                  .padding = {0, padding, padding}});
  layer.history_ = shape.history;
  layer.halo_ = padding;
  return layer;
}

CausalConv3d::Input CausalConv3d::prepare(FeatureCache& cache, at::IntArrayRef chunk_shape,
                                          const at::TensorOptions& options) const {
  Input input;
  input.slot = &cache.nextSlot();
  input.shard = halo_ > 0 ? cache.shard() : nullptr;
  std::vector<int64_t> shape = chunk_shape.vec();
  shape[0] += history_;
  if (input.shard != nullptr) shape[1] += 2 * halo_;
  input.whole = at::empty(shape, options);
  input.frames = input.whole.narrow(0, history_, chunk_shape[0]);
  input.chunk = input.shard == nullptr ? input.frames : input.frames.narrow(1, halo_, chunk_shape[1]);
  const at::Tensor past = input.whole.narrow(0, 0, history_);
  if (input.slot->defined()) {
    past.copy_(*input.slot);
  } else {
    past.zero_();
  }
  return input;
}

// The exchange is not hidden behind the convolution of the rows that need no halo. ATen gives each convolution a result
// of its own: three (the rows inside, one at either border) would have to be copied together. For half of 480x832 at
// full size that is 306 MB to read and write, 0.1 ms of an H200, and two more convolutions of some 20 us, to hide the
// 75 us that a small transfer takes over NVLink. Where images are small the copy is a few us, and some 30 us of each
// exchange would be won: 14 ms of the 0.53 s that two GPUs take for 81 frames, by this arithmetic, which is not worth a
// second path. On CPUs a transfer takes 0.2 ms beside 34 ms for its convolution (256x256 over two ranks).
Borders CausalConv3d::complete(const Input& input) const {
  // The halo of the frames before came with them.
  if (input.shard != nullptr) input.shard->fillHalo(input.frames, 1, halo_, halo_);
  remember(input.whole, *input.slot);
  return input.shard == nullptr ? Borders::kPadded : Borders::kGiven;
}

at::Tensor CausalConv3d::forward(const Input& input) const {
  const Borders borders = complete(input);
  return convolution_.forward(input.whole, borders);
}

void CausalConv3d::addTo(const at::Tensor& sum, const Input& input) const {
  const Borders borders = complete(input);
  convolution_.addTo(sum, input.whole, borders);
}

at::Tensor CausalConv3d::forward(FeatureCache& cache, const at::Tensor& chunk) const {
  const Input input = prepare(cache, chunk.sizes(), chunk.options());
  input.chunk.copy_(chunk);
  return forward(input);
}

void CausalConv3d::remember(FeatureCache& cache, const at::Tensor& chunk) const { remember(chunk, cache.nextSlot()); }

void CausalConv3d::remember(const at::Tensor& whole, at::Tensor& slot) const {
  const at::Tensor last = whole.narrow(0, whole.size(0) - history_, history_);
  if (slot.defined()) {
    slot.copy_(last);
  } else {
    slot = last.clone();
  }
}

}  // namespace latentd::stages::vae
