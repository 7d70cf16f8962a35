// The reference's pipelines, with our own text encoder in front: every model call of every step, and the latents that
// the denoiser stage ends with.

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "stages/wan/attention.h"
#include "stages/wan/denoiser.h"
#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/wan/golden_pipeline.h"
#include "tests/stages/wan/step_recorder.h"

namespace latentd::stages {
namespace {

using nlohmann::json;
using testing::encodeText;
using testing::Golden;
using testing::GoldenPipeline;
using testing::maxAbsDifference;
using testing::Oracle;
using testing::problem;
using testing::rmsDifference;
using testing::StepRecorder;
using testing::tensorAt;

bool isBFloat16(const json& meta) { return meta["transformer_dtype"] == "torch.bfloat16"; }

std::vector<std::string> promptsOf(const json& meta) {
  if (meta["prompt"].is_string()) return {meta["prompt"].get<std::string>()};
  return meta["prompt"].get<std::vector<std::string>>();
}

// ---- every call of the model --------------------------------------------------------------------------------

struct Models {
  wan::WanTransformer first;
  std::optional<wan::WanTransformer> second;
};

Models loadModels(const Oracle& oracle, const std::string& model, at::ScalarType dtype) {
  const auto loaded = [&](const char* component) {
    auto transformer = wan::WanTransformer::load(oracle.checkpoint(model) + "/" + component, {.dtype = dtype});
    REQUIRE(problem(transformer.status()) == "");
    return *std::move(transformer);
  };
  Models models{loaded("transformer"), std::nullopt};
  if (std::filesystem::exists(oracle.checkpoint(model) + "/transformer_2")) models.second = loaded("transformer_2");
  return models;
}

// Our outputs for each step's golden latents, stacked like noise_cond and noise_uncond.
at::Tensor velocities(const Golden& golden, const json& meta, const Models& models, const at::Tensor& text,
                      bool token_timesteps) {
  std::vector<at::Tensor> outputs;
  for (int64_t step = 0; step < meta["steps"].get<int64_t>(); ++step) {
    const wan::WanTransformer& model = meta["model_per_step"][step] == "transformer_2" ? *models.second : models.first;
    const at::Tensor latents = step == 0 ? golden.tensor("latents_init") : golden.tensor("latents_steps")[step - 1];
    const wan::Grid grid = model.grid(latents.sizes());
    at::Tensor timestep = golden.tensor("timesteps").slice(0, step, step + 1);
    if (token_timesteps) {
      timestep = timestep.to(at::kFloat).unsqueeze(0).expand({latents.size(0), grid[0] * grid[1] * grid[2]});
    }
    outputs.push_back(
        model.forward(latents, timestep, model.textContext(text), model.rope().rotation(grid), wan::attendTo));
  }
  return at::stack(outputs);
}

TEST_CASE("wan pipeline: every call of every model in every step equals the reference's", "[wan][golden]") {
  for (const Oracle& oracle : testing::oracles()) {
    int checked = 0;
    for (const char* model : {"wan21-t2v", "wan22-a14b", "wan22-ti2v-5b"}) {
      for (const std::string& name : oracle.goldens(model, "pipeline_")) {
        const Golden golden(oracle, name);
        const json meta = golden.meta();
        if (!golden.has("noise_cond") || isBFloat16(meta) || meta["image"] != "") continue;
        INFO(oracle.name << " " << name);
        const Models models = loadModels(oracle, model, at::kFloat);
        std::vector<at::Tensor> prompts;
        std::vector<at::Tensor> negatives;
        for (const std::string& prompt : promptsOf(meta)) {
          const TensorTree text = encodeText(oracle, model, meta, prompt, DType::kFloat32);
          prompts.push_back(tensorAt(text, "prompt_embeds"));
          if (golden.has("noise_uncond")) negatives.push_back(tensorAt(text, "negative_prompt_embeds"));
        }
        const bool tokens = std::string(model) == "wan22-ti2v-5b";
        CHECK(maxAbsDifference(velocities(golden, meta, models, at::cat(prompts), tokens),
                               golden.tensor("noise_cond")) <= 4e-5);
        if (golden.has("noise_uncond")) {
          CHECK(maxAbsDifference(velocities(golden, meta, models, at::cat(negatives), tokens),
                                 golden.tensor("noise_uncond")) <= 4e-5);
        }
        ++checked;
      }
    }
    CHECK(checked >= 3);
  }
}

// ---- the stage ----------------------------------------------------------------------------------------------

at::Tensor runStage(const GoldenPipeline& pipeline, DType dtype, const std::string& batching,
                    const std::string& device = "cpu") {
  WanDenoiser denoiser;
  REQUIRE(problem(denoiser.load({.model_dir = pipeline.modelDir(),
                                 .device = device,
                                 .dtype = dtype,
                                 .options = {{"guidance_batching", batching}}})) == "");
  StepRecorder context;
  auto outputs = denoiser.run("denoise", pipeline.parameters(), pipeline.inputs(dtype, device), context);
  REQUIRE(problem(outputs.status()) == "");
  return tensorAt(*outputs, "latents");
}

TEST_CASE("wan pipeline: text encoder and denoiser end with the reference's latents", "[wan][golden]") {
  for (const Oracle& oracle : testing::oracles()) {
    int checked = 0;
    for (const std::string& name : oracle.goldens("wan21-t2v", "pipeline_")) {
      const GoldenPipeline pipeline(oracle, "wan21-t2v", name);
      if (!pipeline.meta()["prompt"].is_string()) continue;  // several videos at once are several jobs here
      const at::Tensor expected = pipeline.expected();
      for (const char* batching : {"batched", "separate"}) {
        INFO(oracle.name << " " << name << " " << batching);
        const at::Tensor float32 = runStage(pipeline, DType::kFloat32, batching);
        if (pipeline.isBFloat16()) {
          // Float32 is the reference's to 1e-4, see the other goldens: this is its own distance.
          const double allowed = rmsDifference(expected, float32);
          const at::Tensor bfloat16 = runStage(pipeline, DType::kBFloat16, batching);
          CHECK(rmsDifference(bfloat16, expected) <= allowed);
          CHECK(allowed < 0.1);
        } else {
          CHECK(maxAbsDifference(float32, expected) <= 1e-4);
        }
      }
      ++checked;
    }
    CHECK(checked >= 6);
  }
}

TEST_CASE("wan pipeline: on a device text encoder and denoiser end with the reference's latents",
          "[wan][golden][cuda]") {
  if (!testing::hasCuda()) return;
  for (const Oracle& oracle : testing::oracles()) {
    int checked = 0;
    for (const std::string& name : oracle.goldens("wan21-t2v", "pipeline_")) {
      const GoldenPipeline pipeline(oracle, "wan21-t2v", name);
      if (!pipeline.meta()["prompt"].is_string()) continue;
      INFO(oracle.name << " " << name);
      const at::Tensor expected = pipeline.expected();
      const at::Tensor float32 = runStage(pipeline, DType::kFloat32, "batched", testing::kCudaName);
      if (pipeline.isBFloat16()) {
        const at::Tensor bfloat16 = runStage(pipeline, DType::kBFloat16, "batched", testing::kCudaName);
        // Both are as far from float32.
        CHECK(rmsDifference(bfloat16, float32) <= 1.25 * rmsDifference(expected, float32));
      } else {
        // Two stages, and the solver's steps over their difference.
        CHECK(maxAbsDifference(float32, expected) <= 2e-4);
      }
      ++checked;
    }
    CHECK(checked >= 6);
  }
}

}  // namespace
}  // namespace latentd::stages
