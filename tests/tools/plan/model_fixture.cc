#include "tests/tools/plan/model_fixture.h"

#include <fmt/format.h>

#include "tests/support/catch.h"

namespace latentd::plan {

std::string modelIndex(const std::string& more) {
  return R"({"_class_name": "WanPipeline", "transformer": ["diffusers", "WanTransformer3DModel"],
             "vae": ["diffusers", "AutoencoderKLWan"], "text_encoder": ["transformers", "UMT5EncoderModel"])" +
         more + "}";
}

ModelFolder::ModelFolder(const Sizes& sizes) {
  folder_.write("model_index.json", modelIndex());
  folder_.write("transformer/config.json",
                fmt::format(R"({{"_class_name": "WanTransformer3DModel", "num_attention_heads": {},
                  "attention_head_dim": 128, "in_channels": 16, "out_channels": 16, "text_dim": 4096, "freq_dim": 256,
                  "ffn_dim": {}, "num_layers": {}, "cross_attn_norm": true, "patch_size": [1, 2, 2]}})",
                            sizes.heads, sizes.ffn, sizes.layers));
  std::string ones = "1";
  for (int i = 1; i < 16; ++i)
    ones += ", 1";
  folder_.write("vae/config.json", fmt::format(R"({{"_class_name": "AutoencoderKLWan", "base_dim": 96, "z_dim": 16,
                  "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "temperal_downsample": [false, true, true],
                  "latents_mean": [{0}], "latents_std": [{0}]}})",
                                               ones));
  folder_.write("text_encoder/config.json",
                R"({"model_type": "umt5", "vocab_size": 256384, "d_model": 4096, "d_kv": 64, "d_ff": 10240,
                  "num_layers": 24, "num_heads": 64})");
}

Model modelOf(const Sizes& sizes) {
  const ModelFolder folder(sizes);
  const StatusOr<Model> model = Model::load(folder.path());
  REQUIRE(model.status().ToString() == "OK");
  return *model;
}

Request requestFor(const Sizes& sizes, uint32_t gpus) {
  return {.model = modelOf(sizes), .job = {}, .hardware = *findHardware("h200", std::nullopt), .gpus = gpus};
}

}  // namespace latentd::plan
