#include "stages/wan/transformer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "mesh/pipeline_p2p.h"
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
      pipeline_(options.pipeline),
      rope_(config.head_dim, config.rope_max_seq_len, options.device) {}

StatusOr<WanTransformer> WanTransformer::load(const std::string& directory, const LoadOptions& options) {
  LATENTD_ASSIGN_OR_RETURN(const TransformerConfig config, TransformerConfig::load(directory + "/config.json"));
  return load(directory, config, options);
}

StatusOr<WanTransformer> WanTransformer::load(const std::string& directory, const TransformerConfig& config,
                                              const LoadOptions& options) {
  LATENTD_ASSIGN_OR_RETURN(WeightReader reader, WeightReader::open(directory, options.progress, options.check_only));
  useReferenceNumerics(options.device, AttentionShapes::kFew);
  WanTransformer model(config, options);
  model.loadWeights(reader, options.tensor_parallel);
  // Published checkpoints carry these; no class of the reference reads them.
  LATENTD_RETURN_IF_ERROR(reader.finish({".norm_added_q.weight"}));
  model.weight_bytes_ = reader.takenBytes();
  return model;
}

void WanTransformer::loadWeights(WeightReader& reader, const mesh::TensorParallel& ranks) {
  const int64_t dim = config_.dim();
  const LayerLoader loader{.reader = &reader, .dtype = dtype_, .device = device_};

  const LayerLoader begin = loader.checkOnlyIf(!pipeline_.first()).child("patch_embedding");
  const at::Tensor kernel = begin.take(
      "weight", {dim, config_.in_channels, config_.patch_size[0], config_.patch_size[1], config_.patch_size[2]});
  patch_embedding_ = {kernel, begin.take("bias", {dim})};

  const LayerLoader condition = loader.child("condition_embedder");
  time_up_ = Linear::load(condition.inFloat32().child("time_embedder.linear_1"), dim, config_.freq_dim);
  time_down_ = Linear::load(condition.inFloat32().child("time_embedder.linear_2"), dim, dim);
  time_modulation_ = Linear::load(condition.child("time_proj"), kModulationRows * dim, dim);
  text_up_ = Linear::load(condition.child("text_embedder.linear_1"), dim, config_.text_dim);
  text_down_ = Linear::load(condition.child("text_embedder.linear_2"), dim, dim);

  loadBlocks(loader.child("blocks"), ranks);

  const LayerLoader end = loader.checkOnlyIf(!pipeline_.last());
  output_table_ = end.inFloat32().take("scale_shift_table", {1, kOutputRows, dim});
  output_ = Linear::load(end.child("proj_out"), config_.out_channels * config_.patchVolume(), dim);
}

void WanTransformer::loadBlocks(const LayerLoader& loader, const mesh::TensorParallel& ranks) {
  const mesh::LayerRange own = mesh::pipelineLayers(config_.layers, pipeline_.degree, pipeline_.rank);
  for (int64_t i = 0; i < config_.layers; ++i) {
    const bool is_own = own.begin <= i && i < own.end;
    TransformerBlock block(config_, loader.checkOnlyIf(!is_own).child(std::to_string(i)), ranks);
    if (is_own) blocks_.push_back(std::move(block));
  }
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

VideoExtents WanTransformer::patch() const {
  return {config_.patch_size[0], config_.patch_size[1], config_.patch_size[2]};
}

// [B, C, F, H, W] -> [B, tokens, dim]
at::Tensor WanTransformer::embedPatches(const at::Tensor& latents) const {
  const at::Tensor input = latents.to(device_, dtype_);
  const auto& [kernel, bias] = patch_embedding_;
  if (dtype_ != at::kFloat && device_.is_cpu()) {
    return at::conv3d(input, kernel, bias, config_.patch_size).flatten(2).transpose(1, 2).contiguous();
  }
  return embedTokens(patchify(input, patch()).tokens);
}

// The same as a product, whose kernels fit these sizes better: [B, S, C, patch] -> [B, S, dim]
at::Tensor WanTransformer::embedTokens(const at::Tensor& tokens) const {
  const auto& [kernel, bias] = patch_embedding_;
  return at::linear(tokens.to(device_, dtype_).flatten(2), kernel.flatten(1), bias);
}

// x: [B or 1, S, dim]. Returns tokens if this rank has the last layer, else [B, S, dim].
at::Tensor WanTransformer::runBlocks(at::Tensor x, const at::Tensor& timesteps, const TextContext& text,
                                     const at::Tensor& rotation, const SelfAttention& self_attention) const {
  // From here on [B or 1, tokens or 1, ...].
  const at::Tensor times = timesteps.dim() == 2 ? timesteps : timesteps.unsqueeze(1);
  const at::Tensor time =
      time_down_(at::silu(time_up_(sinusoid(toDevice(times, device_), config_.freq_dim)))).to(dtype_);
  const at::Tensor modulation =
      time_modulation_(at::silu(time)).to(at::kFloat).unflatten(-1, {kModulationRows, config_.dim()});

  for (size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i].forward(std::move(x), {.modulation = modulation,
                                          .rotation = rotation,
                                          .text = text.blocks[i],
                                          .text_bias = text.bias,
                                          .self_attention = self_attention});
  }
  return pipeline_.last() ? projectTokens(x, time) : x;
}

// [B, S, dim] -> [B, S, out_channels, patch], a view whose channels are innermost in memory
at::Tensor WanTransformer::projectTokens(const at::Tensor& x, const at::Tensor& time) const {
  const at::Tensor output = output_table_.add(time.unsqueeze(2));
  const at::Tensor normed = scaledNorm(x, output.select(2, 1).add(1), output.select(2, 0), config_.eps);
  return output_(normed).unflatten(-1, {config_.patchVolume(), config_.out_channels}).transpose(-1, -2);
}

at::Tensor WanTransformer::forward(const at::Tensor& latents, const at::Tensor& timesteps, const TextContext& text,
                                   const at::Tensor& rotation, const SelfAttention& self_attention) const {
  const at::Tensor tokens = runBlocks(embedPatches(latents), timesteps, text, rotation, self_attention);
  const Grid patches = grid(latents.sizes());
  return unpatchify({tokens, {patches[0], patches[1], patches[2]}, patch()});
}

at::Tensor WanTransformer::forwardTokens(at::Tensor x, const at::Tensor& timesteps, const TextContext& text,
                                         const at::Tensor& rotation, const SelfAttention& self_attention) const {
  if (pipeline_.first()) x = embedTokens(x);
  return runBlocks(std::move(x), timesteps, text, rotation, self_attention);
}

}  // namespace latentd::stages::wan
