#include "tools/plan/model.h"

#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "stages/weights/safetensors.h"
#include "tests/support/catch.h"
#include "tests/tools/plan/model_fixture.h"
#include "tools/plan/vae_work.h"

namespace latentd::plan {
namespace {

// Of the tensors whose name begins so.
uint64_t parametersIn(const std::string& file, const std::vector<std::string>& prefixes) {
  const auto weights = stages::SafetensorsFile::open(file);
  REQUIRE(weights.status().ToString() == "OK");
  uint64_t count = 0;
  for (const auto& [name, tensor] : (*weights)->entries()) {
    for (const std::string& prefix : prefixes) {
      if (name.starts_with(prefix)) count += tensor.bytes / byteSize(tensor.dtype);
    }
  }
  return count;
}

std::string refusal(const std::string& dir) {
  const auto model = Model::load(dir);
  return model.ok() ? "OK" : messageOf(model.status());
}

}  // namespace

TEST_CASE("plan: parameters counted from the configs are those in the files", "[tools][plan]") {
  const auto model = Model::load("configs/moving-shapes");
  REQUIRE(model.status().ToString() == "OK");
  CHECK(model->parameters_on_disk == transformerParameters(model->transformer).total(model->transformer.layers));
  CHECK(textParameters(model->text) == parametersIn("configs/moving-shapes/text_encoder/model.safetensors",
                                                    {"encoder.block", "encoder.final", "shared."}));
  CHECK(
      vaeWork(*model, {.width = 128, .height = 128, .frames = 17}).parameters ==
      parametersIn("configs/moving-shapes/vae/diffusion_pytorch_model.safetensors", {"decoder.", "post_quant_conv."}));
}

TEST_CASE("plan: the published sizes have their published parameters", "[tools][plan]") {
  const Model small = modelOf(kWan13);
  CHECK(transformerParameters(small.transformer).total(30) == 1'418'996'800);
  CHECK(textParameters(small.text) == 5'680'910'336);
  CHECK_FALSE(small.parameters_on_disk.has_value());
  const Model large = modelOf(kWan14);
  CHECK(transformerParameters(large.transformer).total(40) == 14'288'491'584);
}

TEST_CASE("plan: tokens of a job", "[tools][plan]") {
  const Model model = modelOf(kWan13);
  CHECK(tokens(model, {}) == 32'760);
  CHECK(tokens(model, {.width = 1280, .height = 720, .frames = 81}) == 75'600);
  CHECK(tokens(model, {.width = 416, .height = 240, .frames = 17}) == 1'950);
}

TEST_CASE("plan: decoding costs what its convolutions multiply", "[tools][plan]") {
  const VaeWork work = vaeWork(modelOf(kWan13), {});
  // Summed by hand over the decoder's layers for latents of 21x60x104.
  CHECK(work.parameters == 73'295'603);
  CHECK(work.flops == 262'728'084'602'880);
  // Four frames of 96 channels at full size.
  CHECK(work.largest_bytes == uint64_t{4} * 480 * 832 * 96 * 2);
  CHECK(work.gather_bytes == 2.0 * 21 * 60 * 104 * 384 * 2);
}

TEST_CASE("plan: a folder that is no model is refused by file and key", "[tools][plan]") {
  CHECK(refusal("").find("--model: '' is not a folder") == 0);
  CHECK(refusal("no/such/model").find("--model: 'no/such/model' is not a folder; give a diffusers directory") == 0);

  const ModelFolder model(kWan13);
  CHECK(refusal(model.path()) == "OK");
  CHECK(refusal(model.path() + "/") == "OK");
  model.folder().write("transformer/diffusion_pytorch_model.safetensors", "no header");
  CHECK(refusal(model.path()).find("diffusion_pytorch_model.safetensors") != std::string::npos);
  model.folder().remove("transformer/diffusion_pytorch_model.safetensors");
  model.folder().write("model_index.json", R"({"_class_name": "WanImageToVideoPipeline"})");
  CHECK(refusal(model.path()).find("WanPipeline (text to video)") != std::string::npos);
  model.folder().write("model_index.json", modelIndex());
  model.folder().remove("vae/config.json");
  CHECK(refusal(model.path()).find("vae/config.json") != std::string::npos);
}

TEST_CASE("plan: what the denoiser refuses is refused in its words", "[tools][plan]") {
  const ModelFolder model(kWan13);
  const auto refusalOf = [&](const std::string& more) {
    model.folder().write("model_index.json", modelIndex(more));
    return refusal(model.path());
  };
  CHECK(refusalOf("") == "OK");
  for (const auto& [more, words] : std::vector<std::pair<std::string, std::string>>{
           {R"(, "expand_timesteps": true)", "expected false: a timestep per token is not served"},
           {R"(, "transformer_2": ["diffusers", "WanTransformer3DModel"])", "transformer_2"},
           {R"(, "image_encoder": ["transformers", "CLIPVisionModel"])", "image_encoder"},
           {R"(, "boundary_ratio": 0.9)", "switching between two transformers is not served"},
           {R"(, "transformer": ["diffusers", "OtherModel"])", "this stage serves WanTransformer3DModel only"},
           {R"(, "text_encoder": ["transformers", "T5"])", "this stage serves UMT5EncoderModel only"}}) {
    INFO(more);
    CHECK(refusalOf(more).find(model.path() + "/model_index.json") == 0);
    CHECK(refusalOf(more).find(words) != std::string::npos);
  }
  model.folder().write("model_index.json", modelIndex());
  const std::string config = stages::testing::readFile(model.path() + "/transformer/config.json");
  model.folder().write("transformer/config.json",
                       std::regex_replace(config, std::regex("\"in_channels\": 16"), "\"in_channels\": 36"));
  CHECK(refusal(model.path()).find("transformers that condition on an image are not served") != std::string::npos);
}

TEST_CASE("plan: a job that the model cannot do is refused with the nearest ones", "[tools][plan]") {
  const Model model = modelOf(kWan13);
  const auto refused = [&](const Job& job) { return messageOf(checkJob(model, job)); };
  CHECK(checkJob(model, {}).ok());
  CHECK(refused({.frames = 80}) == "--frames = 80: expected 1 plus a multiple of 4, at most 4093; nearest 77 or 81");
  CHECK(refused({.width = 830}).find("--size (width) = 830: expected 16 plus a multiple of 16") == 0);
  CHECK(refused({.height = 1}).find("nearest 16 or 32") != std::string::npos);
}

}  // namespace latentd::plan
