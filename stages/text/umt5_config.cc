#include "stages/text/umt5_config.h"

#include <utility>

#include "stages/weights/model_config.h"

namespace latentd::stages {

StatusOr<Umt5Config> readUmt5Config(const std::string& path) {
  LATENTD_ASSIGN_OR_RETURN(ModelConfig file, ModelConfig::read(path));
  // T5 has the same tensors but one position bias for all layers.
  if (file.text("model_type") != "umt5") file.refuse("model_type", "\"umt5\"");
  if (file.text("feed_forward_proj", "gated-gelu") != "gated-gelu") {
    file.refuse("feed_forward_proj", "\"gated-gelu\"");
  }
  Umt5Config config;
  config.vocab_size = file.positive("vocab_size");
  config.d_model = file.positive("d_model");
  config.d_kv = file.positive("d_kv");
  config.d_ff = file.positive("d_ff");
  config.layers = file.positive("num_layers");
  config.heads = file.positive("num_heads");
  config.position_buckets = file.positive("relative_attention_num_buckets", 32);
  config.position_distance_max = file.positive("relative_attention_max_distance", 128);
  config.norm_epsilon = file.number("layer_norm_epsilon", 1e-6);
  // A quarter of the buckets is for single positions of one direction, and the logarithm starts behind them.
  const int64_t exact = config.position_buckets / 4;
  if (config.position_buckets % 4 != 0) file.refuse("relative_attention_num_buckets", "a multiple of 4");
  if (config.position_distance_max <= exact) {
    file.refuse("relative_attention_max_distance", "more than a quarter of relative_attention_num_buckets");
  }
  if (!(config.norm_epsilon > 0)) file.refuse("layer_norm_epsilon", "a number above 0");
  // The other keys are settings of training and of text generation. finish() is not asked, because such
  // configurations carry dozens of them.
  LATENTD_RETURN_IF_ERROR(file.status());
  return config;
}

}  // namespace latentd::stages
