#include "tools/plan/model.h"

#include <string>

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
  model.folder().write("model_index.json", R"({"_class_name": "WanPipeline"})");
  model.folder().remove("vae/config.json");
  CHECK(refusal(model.path()).find("vae/config.json") != std::string::npos);
}

TEST_CASE("plan: a job that the model cannot do is refused with the nearest ones", "[tools][plan]") {
  const Model model = modelOf(kWan13);
  const auto refused = [&](const Job& job) { return messageOf(checkJob(model, job)); };
  CHECK(checkJob(model, {}).ok());
  CHECK(refused({.frames = 80}) == "--frames: 80, expected 1 plus a multiple of 4, at most 4093; nearest 77 or 81");
  CHECK(refused({.width = 830}).find("--size (width): 830, expected 16 plus a multiple of 16") == 0);
  CHECK(refused({.height = 1}).find("nearest 16 or 32") != std::string::npos);
}

}  // namespace latentd::plan
