#include "stages/wan/transformer_config.h"

#include <algorithm>
#include <vector>

#include "stages/weights/model_config.h"

namespace latentd::stages::wan {

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
  read.heads = config.positive("num_attention_heads", read.heads);
  read.head_dim = config.positive("attention_head_dim", read.head_dim);
  // Rotation takes pairs, and each axis needs one.
  if (read.head_dim % 2 != 0 || read.head_dim < 6) config.refuse("attention_head_dim", "an even number of at least 6");
  read.in_channels = config.positive("in_channels", read.in_channels);
  read.out_channels = config.positive("out_channels", read.in_channels);
  read.text_dim = config.positive("text_dim", read.text_dim);
  read.freq_dim = config.positive("freq_dim", read.freq_dim);
  if (read.freq_dim % 2 != 0) config.refuse("freq_dim", "an even number");
  read.ffn_dim = config.positive("ffn_dim", read.ffn_dim);
  read.layers = config.positive("num_layers", read.layers);
  read.cross_attn_norm = config.flag("cross_attn_norm", read.cross_attn_norm);
  read.eps = config.number("eps", read.eps);
  if (read.eps <= 0) config.refuse("eps", "a number above 0");
  read.rope_max_seq_len = config.positive("rope_max_seq_len", read.rope_max_seq_len);
  // The reference normalises queries and keys whatever this says.
  config.ignore({"qk_norm"});
  LATENTD_RETURN_IF_ERROR(config.finish());
  return read;
}

}  // namespace latentd::stages::wan
