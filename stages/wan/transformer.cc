#include "stages/wan/transformer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "stages/device/numerics.h"
#include "stages/device/transfer.h"

namespace latentd::stages::wan {
namespace {

constexpr int64_t kModulationRows = 6;
constexpr int64_t kOutputRows = 2;
// The number of keys is a multiple of this: attention kernels are slow on ragged ends (AVX-512 has 16 floats).
constexpr int64_t kKeyMultiple = 16;

// Leading rows of [B, rows, dim] that are to be kept, so that all further rows are zero in every batch.
int64_t keptRows(const at::Tensor& embeddings) {
  const int64_t rows = embeddings.size(1);
  const at::Tensor used = embeddings.ne(0).any(2).any(0);
  const int64_t last =
      used.any().item<bool>() ? at::arange(rows, used.device()).masked_select(used)[-1].item<int64_t>() : -1;
  // One more key than rows kept: the one that stands for the rest.
  const int64_t keys = (last + 2 + kKeyMultiple - 1) / kKeyMultiple * kKeyMultiple;
  return std::min(keys - 1, rows);
}

}  // namespace

WanTransformer::WanTransformer(const TransformerConfig& config, const LoadOptions& options)
    : config_(config),
      dtype_(options.dtype),
      device_(options.device),
      rope_(config.head_dim, config.rope_max_seq_len, options.device) {}

StatusOr<WanTransformer> WanTransformer::load(const std::string& directory, const LoadOptions& options) {
  LATENTD_ASSIGN_OR_RETURN(const TransformerConfig config, TransformerConfig::load(directory + "/config.json"));
  LATENTD_ASSIGN_OR_RETURN(WeightReader reader, WeightReader::open(directory, options.progress, options.check_only));
  useReferenceNumerics(options.device, AttentionShapes::kFew);
  WanTransformer model(config, options);
  model.loadWeights(reader);
  // Published checkpoints carry these; no class of the reference reads them.
  LATENTD_RETURN_IF_ERROR(reader.finish({".norm_added_q.weight"}));
  model.weight_bytes_ = reader.takenBytes();
  return model;
}

void WanTransformer::loadWeights(WeightReader& reader) {
  const int64_t dim = config_.dim();
  const LayerLoader loader{.reader = &reader, .dtype = dtype_, .device = device_};

  const at::Tensor kernel = loader.take("patch_embedding.weight", {dim, config_.in_channels, config_.patch_size[0],
                                                                   config_.patch_size[1], config_.patch_size[2]});
  patch_embedding_ = {kernel, loader.take("patch_embedding.bias", {dim})};

  const LayerLoader condition = loader.child("condition_embedder");
  time_up_ = Linear::load(condition.inFloat32().child("time_embedder.linear_1"), dim, config_.freq_dim);
  time_down_ = Linear::load(condition.inFloat32().child("time_embedder.linear_2"), dim, dim);
  time_modulation_ = Linear::load(condition.child("time_proj"), kModulationRows * dim, dim);
  text_up_ = Linear::load(condition.child("text_embedder.linear_1"), dim, config_.text_dim);
  text_down_ = Linear::load(condition.child("text_embedder.linear_2"), dim, dim);

  const LayerLoader blocks = loader.child("blocks");
  for (int64_t i = 0; i < config_.layers; ++i)
    blocks_.emplace_back(config_, blocks.child(std::to_string(i)));

  output_table_ = loader.inFloat32().take("scale_shift_table", {1, kOutputRows, dim});
  output_ = Linear::load(loader.child("proj_out"), config_.out_channels * config_.patchVolume(), dim);
}

TextContext WanTransformer::textContext(const at::Tensor& embeddings) const {
  const at::Tensor text = embeddings.to(device_, dtype_);
  const int64_t rows = text.size(1);
  // In 16-bit types the reference rounds the weight of each padded row; one key in their place would be nearer to
  // float32 than the reference is, and further from it. Of a device the host would have to wait to count the rows.
  const int64_t kept = dtype_ == at::kFloat && device_.is_cpu() ? keptRows(text) : rows;
  // A padded row is kept beside the others as the one that stands for the rest.
  const int64_t keys = std::min(kept + 1, rows);
  const at::Tensor projected = text_down_(text_up_.thenGelu(text.slice(1, 0, keys)));

  TextContext context;
  context.batch = text.size(0);
  for (const TransformerBlock& block : blocks_)
    context.blocks.push_back(block.textKeyValue(projected));
  if (rows - kept > 1) {
    context.bias = at::zeros({keys}, at::TensorOptions().dtype(at::kFloat).device(device_));
    context.bias[kept] = std::log(static_cast<double>(rows - kept));
  }
  return context;
}

Grid WanTransformer::grid(at::IntArrayRef latents) const {
  return {latents[2] / config_.patch_size[0], latents[3] / config_.patch_size[1], latents[4] / config_.patch_size[2]};
}

// [B, C, F, H, W] -> [B, tokens, dim]
at::Tensor WanTransformer::embedPatches(const at::Tensor& latents) const {
  const at::Tensor input = latents.to(device_, dtype_);
  const auto& [kernel, bias] = patch_embedding_;
  if (dtype_ != at::kFloat && device_.is_cpu()) {
    return at::conv3d(input, kernel, bias, config_.patch_size).flatten(2).transpose(1, 2).contiguous();
  }
  // The same as a product, whose kernels fit these sizes better.
  const Grid patches = grid(input.sizes());
  const auto& [t, h, w] = config_.patch_size;
  const at::Tensor rows =
      input.reshape({input.size(0), input.size(1), patches[0], t, patches[1], h, patches[2], w})
          .permute({0, 2, 4, 6, 1, 3, 5, 7})
          .reshape({input.size(0), patches[0] * patches[1] * patches[2], input.size(1) * config_.patchVolume()});
  return at::linear(rows, kernel.flatten(1), bias);
}

// [B, tokens, patch * C], channels innermost -> [B, C, F, H, W]
at::Tensor WanTransformer::unpatchify(const at::Tensor& tokens, const Grid& grid) const {
  const auto& [t, h, w] = config_.patch_size;
  return tokens.reshape({tokens.size(0), grid[0], grid[1], grid[2], t, h, w, config_.out_channels})
      .permute({0, 7, 1, 4, 2, 5, 3, 6})
      .reshape({tokens.size(0), config_.out_channels, grid[0] * t, grid[1] * h, grid[2] * w});
}

at::Tensor WanTransformer::forward(const at::Tensor& latents, const at::Tensor& timesteps, const TextContext& text,
                                   const at::Tensor& rotation, const SelfAttention& self_attention) const {
  // From here on [B or 1, tokens or 1, ...].
  const at::Tensor times = timesteps.dim() == 2 ? timesteps : timesteps.unsqueeze(1);
  const at::Tensor time =
      time_down_(at::silu(time_up_(sinusoid(toDevice(times, device_), config_.freq_dim)))).to(dtype_);
  const at::Tensor modulation =
      time_modulation_(at::silu(time)).to(at::kFloat).unflatten(-1, {kModulationRows, config_.dim()});

  at::Tensor x = embedPatches(latents);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i].forward(std::move(x), {.modulation = modulation,
                                          .rotation = rotation,
                                          .text = text.blocks[i],
                                          .text_bias = text.bias,
                                          .self_attention = self_attention});
  }

  const at::Tensor output = output_table_.add(time.unsqueeze(2));
  x = scaledNorm(x, output.select(2, 1).add(1), output.select(2, 0), config_.eps);
  return unpatchify(output_(x), grid(latents.sizes()));
}

}  // namespace latentd::stages::wan
