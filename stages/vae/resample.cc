#include "stages/vae/resample.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

namespace latentd::stages::vae {
namespace {

// The kernel along `dim`, three taps over the doubled image, as two taps over the small one. An even place sees the
// pixel before and its own one twice, an odd place its own one twice and the next.
at::Tensor foldTaps(const at::Tensor& weight, int64_t dim, bool odd) {
  const at::Tensor before = weight.narrow(dim, 0, 1);
  const at::Tensor centre = weight.narrow(dim, 1, 1);
  const at::Tensor after = weight.narrow(dim, 2, 1);
  return odd ? at::cat({before.add(centre), after}, dim) : at::cat({before, centre.add(after)}, dim);
}

}  // namespace

Upsample Upsample::load(const LayerLoader& loader, int64_t in, int64_t out, bool temporal) {
  Upsample layer;
  layer.out_ = out;
  const LayerLoader conv = loader.child("resample.1");
  const at::Tensor weight = conv.take("weight", {out, in, 3, 3});
  const at::Tensor bias = conv.take("bias", {out});
  if (weight.defined() && bias.defined()) {
    const at::Tensor exact = weight.to(at::kDouble);
    std::vector<at::Tensor> places;
    for (bool odd_row : {false, true}) {
      for (bool odd_column : {false, true})
        places.push_back(foldTaps(foldTaps(exact, 2, odd_row), 3, odd_column));
    }
    layer.places_ = Convolution({.in = in, .out = 4 * out, .kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}},
                                at::cat(places, 0).to(weight.scalar_type()), bias.repeat({4}));
  }
  if (temporal) {
    layer.time_conv_ = CausalConv3d::load(loader.child("time_conv"), {.in = in, .out = 2 * in, .spatial = 1});
  }
  return layer;
}

at::Tensor Upsample::forward(at::Tensor input, FeatureCache& cache) const {
  if (time_conv_) input = doubleFrames(input, cache);
  const int64_t frames = input.size(0);
  const int64_t height = input.size(1);
  const int64_t width = input.size(2);
  // With one pixel of padding, entry (y, x) holds what the pixels (y-1, x-1) to (y, x) give: the even places of pixel
  // (y, x) and the odd ones of the pixel before.
  const at::Tensor places = convolveSmall(std::move(input), cache.shard());
  at::Tensor output = at::empty({frames, height, 2, width, 2, out_}, places.options());
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t column = 0; column < 2; ++column) {
      output.select(4, column).select(2, row).copy_(
          places.narrow(1, row, height).narrow(2, column, width).narrow(3, (2 * row + column) * out_, out_));
    }
  }
  return output.view({frames, 2 * height, 2 * width, out_});
}

at::Tensor Upsample::convolveSmall(at::Tensor input, const mesh::SpatialShard* shard) const {
  if (shard == nullptr) return places_.forward(input);
  const at::Tensor padded = at::constant_pad_nd(input, {0, 0, 0, 0, 1, 1});
  input.reset();
  shard->fillHalo(padded, 1, 1, 1);
  return places_.forward(padded, Borders::kGiven);
}

// The first chunk is one frame and stays one, unseen by the convolution; the second has zeros before it.
at::Tensor Upsample::doubleFrames(const at::Tensor& input, FeatureCache& cache) const {
  if (cache.isFirstChunk()) {
    cache.nextSlot();
    return input;
  }
  const at::Tensor pairs = time_conv_->forward(cache, input);
  const auto sizes = input.sizes();
  // The first half of the channels is the even frame.
  return pairs.view({sizes[0], sizes[1], sizes[2], 2, sizes[3]})
      .permute({0, 3, 1, 2, 4})
      .reshape({2 * sizes[0], sizes[1], sizes[2], sizes[3]})
      .contiguous();
}

Downsample Downsample::load(const LayerLoader& loader, int64_t channels, bool temporal) {
  Downsample layer;
  layer.convolution_ =
      Convolution::load(loader.child("resample.1"),
                        {.in = channels, .out = channels, .kernel = {3, 3}, .stride = {2, 2}, .padding = {0, 0}});
  if (temporal) {
    layer.time_conv_ = CausalConv3d::load(
        loader.child("time_conv"), {.in = channels, .out = channels, .spatial = 1, .time_stride = 2, .history = 1});
  }
  return layer;
}

at::Tensor Downsample::forward(at::Tensor input, FeatureCache& cache) const {
  const at::Tensor padded = at::constant_pad_nd(input, {0, 0, 0, 1, 0, 1});
  // A window begins in every second row: where shards have an even number of rows, only the last window of one reaches
  // into the next.
  if (cache.shard() != nullptr) cache.shard()->fillHalo(padded, 1, 0, 1);
  at::Tensor half = convolution_.forward(padded);
  if (!time_conv_) return half;
  if (cache.isFirstChunk()) {
    time_conv_->remember(cache, half);
    return half;
  }
  return time_conv_->forward(cache, half);
}

at::Tensor AverageDown::forward(const at::Tensor& input) const {
  const int64_t missing = (time_factor - input.size(0) % time_factor) % time_factor;
  const at::Tensor padded = missing == 0 ? input : at::constant_pad_nd(input, {0, 0, 0, 0, 0, 0, missing, 0});
  const int64_t frames = padded.size(0) / time_factor;
  const int64_t height = padded.size(1) / space_factor;
  const int64_t width = padded.size(2) / space_factor;
  const int64_t channels = padded.size(3);
  const int64_t group = channels * time_factor * space_factor * space_factor / out;
  return padded.view({frames, time_factor, height, space_factor, width, space_factor, channels})
      .permute({0, 2, 4, 6, 1, 3, 5})
      .reshape({frames, height, width, out, group})
      .mean(-1);
}

at::Tensor DuplicateUp::forward(const at::Tensor& input, bool first_chunk) const {
  const int64_t frames = input.size(0);
  const int64_t height = input.size(1);
  const int64_t width = input.size(2);
  const int64_t repeats = out * time_factor * space_factor * space_factor / input.size(3);
  const at::Tensor spread = input.repeat_interleave(repeats, 3)
                                .view({frames, height, width, out, time_factor, space_factor, space_factor})
                                .permute({0, 4, 1, 5, 2, 6, 3})
                                .reshape({frames * time_factor, height * space_factor, width * space_factor, out});
  return first_chunk ? spread.narrow(0, time_factor - 1, spread.size(0) - time_factor + 1) : spread;
}

at::Tensor patchify(const at::Tensor& frames, int64_t patch_size) {
  if (patch_size == 1) return frames;
  const auto sizes = frames.sizes();
  const int64_t height = sizes[1] / patch_size;
  const int64_t width = sizes[2] / patch_size;
  return frames.view({sizes[0], height, patch_size, width, patch_size, sizes[3]})
      .permute({0, 1, 3, 5, 4, 2})
      .reshape({sizes[0], height, width, sizes[3] * patch_size * patch_size});
}

at::Tensor unpatchify(const at::Tensor& frames, int64_t patch_size) {
  if (patch_size == 1) return frames;
  const auto sizes = frames.sizes();
  const int64_t channels = sizes[3] / (patch_size * patch_size);
  return frames.view({sizes[0], sizes[1], sizes[2], channels, patch_size, patch_size})
      .permute({0, 1, 5, 2, 4, 3})
      .reshape({sizes[0], sizes[1] * patch_size, sizes[2] * patch_size, channels});
}

}  // namespace latentd::stages::vae
