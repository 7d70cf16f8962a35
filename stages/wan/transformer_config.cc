#include "stages/wan/transformer_config.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "stages/weights/model_config.h"

namespace latentd::stages::wan {
namespace {

// Sizes that no model comes near; they keep a damaged file from asking for terabytes.
constexpr int64_t kFeaturesMax = 1 << 20;
constexpr int64_t kLayersMax = 1 << 10;
constexpr int64_t kPositionsMax = 1 << 16;

int64_t bounded(ModelConfig& config, std::string_view key, int64_t fallback, int64_t max) {
  const int64_t value = config.positive(key, fallback);
  if (value <= max) return value;
  config.refuse(key, "at most " + std::to_string(max));
  return fallback;
}

}  // namespace

StatusOr<TransformerConfig> TransformerConfig::load(const std::string& path) {
  LATENTD_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::read(path));
  if (config.text("_class_name") != "WanTransformer3DModel") config.refuse("_class_name", "WanTransformer3DModel");
  // Refused before anything else, so that an image-to-video checkpoint hears why.
  for (const char* key : {"image_dim", "added_kv_proj_dim", "pos_embed_seq_len"}) {
    config.refuseIfSet(key, "null: transformers that condition on an image are not served");
  }
  TransformerConfig read;
  if (config.has("patch_size")) {
    const std::vector<int64_t> patch = config.integers("patch_size", read.patch_size.size());
    std::copy(patch.begin(), patch.end(), read.patch_size.begin());
  }
  read.heads = bounded(config, "num_attention_heads", read.heads, kFeaturesMax);
  read.head_dim = bounded(config, "attention_head_dim", read.head_dim, kFeaturesMax);
  // Rotation takes pairs, and each axis needs one.
  if (read.head_dim % 2 != 0 || read.head_dim < 6) config.refuse("attention_head_dim", "an even number of at least 6");
  read.in_channels = bounded(config, "in_channels", read.in_channels, kFeaturesMax);
  read.out_channels = bounded(config, "out_channels", read.in_channels, kFeaturesMax);
  read.text_dim = bounded(config, "text_dim", read.text_dim, kFeaturesMax);
  read.freq_dim = bounded(config, "freq_dim", read.freq_dim, kFeaturesMax);
  if (read.freq_dim % 2 != 0) config.refuse("freq_dim", "an even number");
  read.ffn_dim = bounded(config, "ffn_dim", read.ffn_dim, kFeaturesMax);
  read.layers = bounded(config, "num_layers", read.layers, kLayersMax);
  if (read.dim() > kFeaturesMax) config.refuse("num_attention_heads", "at most 2^20 features in all heads");
  read.cross_attn_norm = config.flag("cross_attn_norm", read.cross_attn_norm);
  read.eps = config.number("eps", read.eps);
  if (read.eps <= 0) config.refuse("eps", "a number above 0");
  read.rope_max_seq_len = bounded(config, "rope_max_seq_len", read.rope_max_seq_len, kPositionsMax);
  // The reference normalises queries and keys whatever this says.
  config.ignore({"qk_norm"});
  LATENTD_RETURN_IF_ERROR(config.finish());
  return read;
}

}  // namespace latentd::stages::wan
