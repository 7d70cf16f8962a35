#include "stages/vae/vae_config.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "tests/stages/temp_checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/contains_text.h"

namespace latentd::stages::vae {
namespace {

using latentd::testing::containsText;

// The published configurations.
nlohmann::json wan21() {
  return {{"_class_name", "AutoencoderKLWan"},
          {"_diffusers_version", "0.33.0"},
          {"attn_scales", nlohmann::json::array()},
          {"base_dim", 96},
          {"dim_mult", {1, 2, 4, 4}},
          {"dropout", 0.0},
          {"latents_mean", std::vector<double>(16, 0.5)},
          {"latents_std", std::vector<double>(16, 2.0)},
          {"num_res_blocks", 2},
          {"temperal_downsample", {false, true, true}},
          {"z_dim", 16}};
}

nlohmann::json wan22() {
  nlohmann::json config = wan21();
  config.update({{"base_dim", 160},
                 {"decoder_base_dim", 256},
                 {"z_dim", 48},
                 {"latents_mean", std::vector<double>(48, 0.5)},
                 {"latents_std", std::vector<double>(48, 2.0)},
                 {"is_residual", true},
                 {"in_channels", 12},
                 {"out_channels", 12},
                 {"patch_size", 2},
                 {"scale_factor_temporal", 4},
                 {"scale_factor_spatial", 16},
                 {"clip_output", false}});
  return config;
}

StatusOr<VaeConfig> load(const nlohmann::json& config) {
  const testing::TempCheckpoint files;
  return VaeConfig::load(files.write("config.json", config.dump()));
}

VaeConfig loadGood(const nlohmann::json& config) {
  auto loaded = load(config);
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  return *loaded;
}

TEST_CASE("VAE config: the published ones, with the keys that early ones lack", "[vae]") {
  const VaeConfig small = loadGood(wan21());
  CHECK(small.decoder_base_dim == 96);
  CHECK(small.temporalFactor() == 4);
  CHECK(small.spatialFactor() == 8);
  CHECK(small.imageChannels() == 3);
  CHECK(small.frames(21) == 81);
  CHECK(small.latentFrames(81) == 21);
  CHECK(small.frames(1) == 1);
  CHECK(small.latentFrames(1) == 1);
  const VaeConfig large = loadGood(wan22());
  CHECK(large.decoder_base_dim == 256);
  CHECK(large.is_residual);
  CHECK(large.spatialFactor() == 16);
  CHECK(large.imageChannels() == 3);
}

TEST_CASE("VAE config: fewer halvings are other factors", "[vae]") {
  nlohmann::json config = wan21();
  config.update({{"dim_mult", {1, 2, 2}},
                 {"temperal_downsample", {true, false}},
                 {"scale_factor_temporal", 2},
                 {"scale_factor_spatial", 4}});
  const VaeConfig loaded = loadGood(config);
  CHECK(loaded.temporalFactor() == 2);
  CHECK(loaded.spatialFactor() == 4);
}

TEST_CASE("VAE config: what does not fit is refused by file, key, value and what is valid", "[vae]") {
  struct Case {
    nlohmann::json change;
    std::string key;
    std::string expected;
    bool residual = false;
  };
  const std::vector<Case> cases = {
      {{{"_class_name", "AutoencoderKL"}}, "_class_name", "AutoencoderKLWan"},
      {{{"z_dim", 0}}, "z_dim", "at least 1"},
      {{{"z_dim", 17}}, "latents_mean", "17"},
      {{{"latents_std", std::vector<double>(16, 0.0)}}, "latents_std", "positive"},
      {{{"dim_mult", nlohmann::json::array()}}, "dim_mult", "1 to 16"},
      {{{"dim_mult", {1, 2, 4, 1000000000}}}, "dim_mult", "65536"},
      {{{"dim_mult", {1, 2, 4}}}, "temperal_downsample", "2 flags"},
      {{{"temperal_downsample", {true, true, true}}}, "temperal_downsample", "at most two"},
      {{{"scale_factor_temporal", 8}}, "scale_factor_temporal", "4"},
      {{{"scale_factor_spatial", 16}}, "scale_factor_spatial", "8"},
      {{{"in_channels", 4}}, "in_channels", "3"},
      {{{"out_channels", 12}}, "out_channels", "3"},
      {{{"patch_size", 2}}, "in_channels", "12"},
      {{{"base_dim", "96"}}, "base_dim", "integer"},
      {{{"tiles", 4}}, "tiles", ""},
      {{{"attn_scales", {0.5}}}, "attn_scales", "is_residual", true},
      {{{"dim_mult", {1, 3, 4, 7}}}, "dim_mult", "block", true},
  };
  for (const Case& item : cases) {
    INFO(item.change.dump());
    nlohmann::json config = item.residual ? wan22() : wan21();
    config.update(item.change);
    const auto loaded = load(config);
    REQUIRE_FALSE(loaded.ok());
    const std::string message = loaded.status().ToString();
    CHECK_THAT(message, containsText("config.json") && containsText(item.key) && containsText(item.expected));
  }
}

}  // namespace
}  // namespace latentd::stages::vae
