#include "tests/stages/wan/golden_pipeline.h"

#include <utility>

#include "stages/noise/noise.h"
#include "stages/text/text_encoder_stage.h"
#include "tests/stages/wan/step_recorder.h"

namespace latentd::stages::testing {
namespace {

using nlohmann::json;

// The seeds of a set's latents lie in a row from the checkpoint's own.
constexpr uint64_t kFirstSeed = 2101;
constexpr uint64_t kLastSeed = 3200;

uint64_t seedOf(const at::Tensor& latents) {
  for (uint64_t seed = kFirstSeed; seed < kLastSeed; ++seed) {
    if (initialLatents(seed, latents.sizes()).equal(latents)) return seed;
  }
  FAIL("latents_init is not the noise of any expected seed");
  return 0;
}

}  // namespace

TensorTree encodeText(const Oracle& oracle, const std::string& model, const json& meta, const json& prompt, DType dtype,
                      const std::string& device) {
  TextEncoderStage encoder;
  REQUIRE(problem(encoder.load({.model_dir = oracle.checkpoint(model), .device = device, .dtype = dtype})) == "");
  SamplingParameters job;
  job.prompt = prompt.get<std::string>();
  job.negative_prompt = meta["negative_prompt"].is_null() ? "" : meta["negative_prompt"].get<std::string>();
  job.guidance_scale = meta["guidance_scale"].get<double>();
  StepRecorder context;
  auto outputs = encoder.run("encode", job, TensorTree(TensorTree::Value(TensorTree::Dict{})), context);
  REQUIRE(problem(outputs.status()) == "");
  return *std::move(outputs);
}

at::Tensor tensorAt(const TensorTree& tree, const std::string& key) { return *tree.find(key)->getIf<at::Tensor>(); }

GoldenPipeline::GoldenPipeline(const Oracle& oracle, const std::string& model, const std::string& name)
    : oracle_(oracle), model_(model), golden_(oracle, name), meta_(golden_.meta()) {
  files_.copy(oracle.checkpoint(model));
  json scheduler = meta_["scheduler_config"];
  scheduler["_class_name"] = meta_["scheduler"];
  files_.write(model + "/scheduler/scheduler_config.json", scheduler.dump());
}

SamplingParameters GoldenPipeline::parameters() const {
  SamplingParameters job;
  job.frames = meta_["num_frames"].get<uint32_t>();
  job.width = meta_["width"].get<uint32_t>();
  job.height = meta_["height"].get<uint32_t>();
  job.steps = meta_["steps"].get<uint32_t>();
  job.guidance_scale = meta_["guidance_scale"].get<double>();
  job.seed = seedOf(golden_.tensor("latents_init"));
  return job;
}

TensorTree GoldenPipeline::inputs(DType dtype, const std::string& device) const {
  return encodeText(oracle_, model_, meta_, meta_["prompt"], dtype, device);
}

}  // namespace latentd::stages::testing
