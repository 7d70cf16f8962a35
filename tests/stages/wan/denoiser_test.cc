#include "stages/wan/denoiser.h"

#include <ATen/ops/zeros.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/status_field.h"
#include "stages/noise/noise.h"
#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/temp_checkpoint.h"
#include "tests/stages/wan/step_recorder.h"
#include "tests/support/contains_text.h"

namespace latentd::stages {
namespace {

using latentd::testing::containsText;
using nlohmann::json;
using testing::maxAbsDifference;
using testing::problem;
using testing::StepRecorder;
using testing::TempCheckpoint;

constexpr int64_t kRows = 512;

std::string checkpoint() { return testing::oracles().front().checkpoint("wan21-t2v"); }

WanDenoiser load(const std::string& model_dir, const std::string& batching = "auto", DType dtype = DType::kFloat32,
                 const std::string& device = "cpu") {
  WanDenoiser denoiser;
  REQUIRE(
      problem(denoiser.load(
          {.model_dir = model_dir, .device = device, .dtype = dtype, .options = {{"guidance_batching", batching}}})) ==
      "");
  return denoiser;
}

SamplingParameters smallJob() {
  SamplingParameters job;
  job.frames = 5;
  job.width = 48;
  job.height = 32;
  job.steps = 3;
  job.guidance_scale = 4.0;
  job.seed = 11;
  return job;
}

at::Tensor text(uint64_t seed, int64_t used, int64_t dim) {
  at::Tensor rows = at::zeros({1, kRows, dim});
  rows.narrow(1, 0, used).copy_(initialLatents(seed, {1, used, dim}));
  return rows;
}

TensorTree inputsOf(const WanDenoiser& denoiser) {
  TensorTree::Dict inputs;
  inputs.entries = {{"prompt_embeds", TensorTree::Value(text(1, 20, denoiser.textDim()))},
                    {"negative_prompt_embeds", TensorTree::Value(text(2, 3, denoiser.textDim()))}};
  return TensorTree::Value(std::move(inputs));
}

at::Tensor latentsOf(const StatusOr<TensorTree>& outputs) {
  REQUIRE(problem(outputs.status()) == "");
  const TensorTree* latents = outputs->find("latents");
  REQUIRE(latents != nullptr);
  return *latents->getIf<at::Tensor>();
}

at::Tensor denoise(WanDenoiser& denoiser, const SamplingParameters& job) {
  StepRecorder context;
  return latentsOf(denoiser.run("denoise", job, inputsOf(denoiser), context));
}

TEST_CASE("wan denoiser: latents are float32 of the job's size, and steps are told in order", "[wan]") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    WanDenoiser denoiser = load(checkpoint(), "auto", dtype);
    REQUIRE(problem(denoiser.warmUp()) == "");
    CHECK(denoiser.weightBytes() > 100'000);
    StepRecorder context;
    const at::Tensor latents = latentsOf(denoiser.run("denoise", smallJob(), inputsOf(denoiser), context));
    CHECK(latents.scalar_type() == at::kFloat);
    CHECK(latents.sizes() == at::IntArrayRef({1, 16, 2, 4, 6}));
    CHECK(latents.isfinite().all().item<bool>());
    CHECK(context.begun() == std::vector<uint32_t>{0, 1, 2});
    CHECK(context.finished() == std::vector<uint32_t>{0, 1, 2});
  }
}

TEST_CASE("wan denoiser: the same seed gives the same latents, another seed others", "[wan]") {
  WanDenoiser denoiser = load(checkpoint());
  SamplingParameters job = smallJob();
  const at::Tensor first = denoise(denoiser, job);
  CHECK(denoise(denoiser, job).equal(first));
  job.seed = 12;
  CHECK(maxAbsDifference(denoise(denoiser, job), first) > 0.1);
}

TEST_CASE("wan denoiser: guidance in one pass equals guidance in two", "[wan]") {
  for (const auto& oracle : testing::oracles()) {
    WanDenoiser batched = load(oracle.checkpoint("wan21-t2v"), "batched");
    WanDenoiser separate = load(oracle.checkpoint("wan21-t2v"), "separate");
    CHECK(maxAbsDifference(denoise(batched, smallJob()), denoise(separate, smallJob())) <= 2e-5);
  }
}

TEST_CASE("wan denoiser: without guidance the negative prompt is not needed and not used", "[wan]") {
  WanDenoiser denoiser = load(checkpoint());
  SamplingParameters job = smallJob();
  job.guidance_scale = 1.0;
  const at::Tensor with = denoise(denoiser, job);
  const TensorTree prompt = *inputsOf(denoiser).find("prompt_embeds");
  StepRecorder context;
  TensorTree::Dict absent;
  absent.entries = {{"prompt_embeds", prompt}};
  CHECK(latentsOf(denoiser.run("denoise", job, TensorTree::Value(absent), context)).equal(with));
  TensorTree::Dict null = absent;
  null.entries.emplace_back("negative_prompt_embeds", TensorTree());
  CHECK(latentsOf(denoiser.run("denoise", job, TensorTree::Value(null), context)).equal(with));
  job.guidance_scale = 1.001;
  CHECK_THAT(problem(denoiser.run("denoise", job, TensorTree::Value(null), context).status()),
             containsText("\"negative_prompt_embeds\" is no tensor"));
}

TEST_CASE("wan denoiser: a flow shift of the job counts", "[wan]") {
  WanDenoiser denoiser = load(checkpoint());
  SamplingParameters job = smallJob();
  const at::Tensor plain = denoise(denoiser, job);
  job.flow_shift = 3.0;  // the checkpoint's own
  CHECK(denoise(denoiser, job).equal(plain));
  job.flow_shift = 7.0;
  CHECK(maxAbsDifference(denoise(denoiser, job), plain) > 0.05);
}

TEST_CASE("wan denoiser: a cancelled job ends before its step, and the next job is whole", "[wan]") {
  WanDenoiser denoiser = load(checkpoint());
  const at::Tensor whole = denoise(denoiser, smallJob());
  StepRecorder context(1);
  const Status status = denoiser.run("denoise", smallJob(), inputsOf(denoiser), context).status();
  CHECK(status.code() == absl::StatusCode::kCancelled);
  CHECK(context.finished() == std::vector<uint32_t>{0});
  CHECK(denoise(denoiser, smallJob()).equal(whole));
}

// ---- on a device --------------------------------------------------------------------------------------------

TEST_CASE("wan denoiser: on a device the latents are a CPU's, and the host never waits in the steps", "[wan][cuda]") {
  if (!testing::hasCuda()) return;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const char* batching : {"batched", "separate"}) {
      INFO(toString(dtype) << " " << batching);
      WanDenoiser here = load(checkpoint(), batching, dtype);
      WanDenoiser there = load(checkpoint(), batching, dtype, testing::kCudaName);
      REQUIRE(problem(there.warmUp()) == "");
      CHECK(there.weightBytes() == here.weightBytes());
      StepRecorder context;
      at::Tensor latents;
      {
        const testing::HostNeverWaits guard;
        latents = latentsOf(there.run("denoise", smallJob(), inputsOf(there), context));
      }
      CHECK(latents.device() == testing::cudaDevice());
      CHECK(latents.scalar_type() == at::kFloat);
      CHECK(context.finished() == std::vector<uint32_t>{0, 1, 2});
      if (dtype == DType::kFloat32) {
        CHECK(maxAbsDifference(latents, denoise(here, smallJob())) <= 1e-4);
      } else {
        WanDenoiser exact = load(checkpoint(), batching);
        const at::Tensor expected = denoise(exact, smallJob());
        CHECK(testing::rmsDifference(latents, expected) <=
              1.25 * testing::rmsDifference(denoise(here, smallJob()), expected));
      }
    }
  }
}

TEST_CASE("wan denoiser: on a device the same seed gives the same bits, also after a cancelled job", "[wan][cuda]") {
  if (!testing::hasCuda()) return;
  WanDenoiser denoiser = load(checkpoint(), "auto", DType::kBFloat16, testing::kCudaName);
  const at::Tensor whole = denoise(denoiser, smallJob());
  StepRecorder context(2);
  const Status status = denoiser.run("denoise", smallJob(), inputsOf(denoiser), context).status();
  CHECK(status.code() == absl::StatusCode::kCancelled);
  CHECK(context.finished() == std::vector<uint32_t>{0, 1});
  CHECK(denoise(denoiser, smallJob()).equal(whole));
}

TEST_CASE("wan denoiser: limits come from transformer and VAE", "[wan]") {
  const ModelLimits limits = load(checkpoint()).limits();
  CHECK(limits.frame_step == 4U);
  CHECK(limits.size_multiple == 16U);
  CHECK(limits.frames_max == 1U + 1023U * 4U);
  CHECK(limits.defaults.steps == 50U);
  CHECK(limits.defaults.flow_shift == 3.0);
}

// ---- refusals -----------------------------------------------------------------------------------------------

TEST_CASE("wan denoiser: jobs it cannot do are refused with the nearest valid values", "[wan]") {
  WanDenoiser denoiser = load(checkpoint());
  const TensorTree inputs = inputsOf(denoiser);
  StepRecorder context;
  const auto refusal = [&](const std::function<void(SamplingParameters&)>& change) {
    SamplingParameters job = smallJob();
    change(job);
    const Status status = denoiser.run("denoise", job, inputs, context).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return messageOf(status);
  };
  using Job = SamplingParameters;
  CHECK_THAT(refusal([](Job& job) { job.frames = 16; }), containsText("frames = 16") && containsText("13 or 17"));
  CHECK_THAT(refusal([](Job& job) { job.frames = 0; }), containsText("frames = 0") && containsText("1 or 5"));
  CHECK_THAT(refusal([](Job& job) { job.frames = 1'000'000'000; }), containsText("nearest 4093"));
  CHECK_THAT(refusal([](Job& job) { job.width = 127; }), containsText("width = 127") && containsText("112 or 128"));
  CHECK_THAT(refusal([](Job& job) { job.height = 0; }), containsText("height = 0") && containsText("16 or 32"));
  CHECK_THAT(refusal([](Job& job) { job.height = 1'000'000; }), containsText("at most 16384"));
  CHECK_THAT(refusal([](Job& job) { job.steps = 0; }), containsText("steps = 0"));
  CHECK_THAT(refusal([](Job& job) { job.steps = 1'000'000; }), containsText("1 to 1000"));
  CHECK_THAT(refusal([](Job& job) { job.guidance_scale = std::nan(""); }), containsText("guidance_scale = nan"));
  CHECK_THAT(refusal([](Job& job) { job.flow_shift = -1; }), containsText("flow_shift = -1"));
  CHECK_THAT(refusal([](Job& job) { job.flow_shift = std::nan(""); }), containsText("flow_shift = nan"));
  CHECK(context.begun().empty());
  CHECK_THAT(problem(denoiser.run("paint", smallJob(), inputs, context).status()), containsText("expected denoise"));
}

TEST_CASE("wan denoiser: embeddings that do not fit are refused", "[wan]") {
  WanDenoiser denoiser = load(checkpoint());
  StepRecorder context;
  const int64_t dim = denoiser.textDim();
  const auto refusal = [&](TensorTree prompt, TensorTree negative) {
    TensorTree::Dict inputs;
    inputs.entries = {{"prompt_embeds", std::move(prompt)}, {"negative_prompt_embeds", std::move(negative)}};
    return problem(denoiser.run("denoise", smallJob(), TensorTree::Value(inputs), context).status());
  };
  const auto tensor = [](at::IntArrayRef shape) { return TensorTree(TensorTree::Value(at::zeros(shape))); };
  const TensorTree good = tensor({1, kRows, dim});
  CHECK(refusal(good, good).empty());
  CHECK_THAT(refusal(tensor({1, kRows, dim + 1}), good),
             containsText("\"prompt_embeds\" is float32 [1, 512, " + std::to_string(dim + 1) + "]"));
  CHECK_THAT(refusal(tensor({2, kRows, dim}), good),
             containsText("expected a floating-point tensor [1, rows, " + std::to_string(dim) + "]"));
  CHECK_THAT(refusal(tensor({1, 0, dim}), good), containsText("[1, 0, "));
  CHECK_THAT(refusal(TensorTree::Value(at::zeros({1, kRows, dim}, at::kLong)), good), containsText("int64"));
  CHECK_THAT(refusal(TensorTree::Value(std::string("fox")), good), containsText("\"prompt_embeds\" is no tensor"));
  CHECK_THAT(refusal(good, tensor({1, 226, dim})), containsText("has 226 rows"));
  CHECK_THAT(problem(denoiser.run("denoise", smallJob(), TensorTree(), context).status()),
             containsText("\"prompt_embeds\" is missing"));
}

std::string loadProblem(const std::string& model_dir, const std::map<std::string, std::string>& options = {}) {
  WanDenoiser denoiser;
  return problem(denoiser.load({.model_dir = model_dir, .options = options}));
}

// A copy of the checkpoint with one key of one JSON file replaced.
std::string problemWith(const char* file, const char* key, const json& value) {
  TempCheckpoint files;
  files.copy(checkpoint());
  const std::string path = "wan21-t2v/" + std::string(file);
  json content = json::parse(testing::readFile(files.path() + "/" + path));
  content[key] = value;
  files.write(path, content.dump());
  return loadProblem(files.path() + "/wan21-t2v");
}

TEST_CASE("wan denoiser: checkpoints it does not serve are refused by key", "[wan]") {
  const json component = {"diffusers", "WanTransformer3DModel"};
  CHECK_THAT(problemWith("model_index.json", "expand_timesteps", true),
             containsText("model_index.json: expand_timesteps = true"));
  CHECK_THAT(problemWith("model_index.json", "transformer_2", component), containsText("transformer_2 = ["));
  CHECK_THAT(problemWith("model_index.json", "image_encoder", {"transformers", "CLIPVisionModel"}),
             containsText("image_encoder = ["));
  CHECK_THAT(problemWith("model_index.json", "boundary_ratio", 0.9), containsText("boundary_ratio = 0.9"));
  CHECK_THAT(problemWith("model_index.json", "_class_name", "WanVACEPipeline"),
             containsText("_class_name = \"WanVACEPipeline\""));
  CHECK_THAT(problemWith("model_index.json", "transformer", {"diffusers", "FluxTransformer2DModel"}),
             containsText("transformer is FluxTransformer2DModel"));
  CHECK_THAT(problemWith("model_index.json", "vae", {nullptr, nullptr}), containsText("vae is absent"));
  CHECK_THAT(problemWith("transformer/config.json", "image_dim", 1280), containsText("image_dim = 1280"));
  CHECK_THAT(problemWith("transformer/config.json", "added_kv_proj_dim", 96), containsText("added_kv_proj_dim = 96"));
  CHECK_THAT(problemWith("transformer/config.json", "pos_embed_seq_len", 514), containsText("pos_embed_seq_len = 514"));
  CHECK_THAT(problemWith("transformer/config.json", "_class_name", "X"), containsText("WanTransformer3DModel"));
  CHECK_THAT(problemWith("transformer/config.json", "new_attention", "ring"), containsText("new_attention = \"ring\""));
  CHECK_THAT(problemWith("transformer/config.json", "rope_max_seq_len", 1'000'000'000),
             containsText("rope_max_seq_len = 1000000000"));
  CHECK_THAT(
      problemWith("transformer/config.json", "in_channels", 36),
      containsText("in_channels = 36") && containsText("transformers that condition on an image are not served"));
  CHECK_THAT(problemWith("transformer/config.json", "num_layers", 4),
             containsText(".scale_shift_table") && containsText("is missing"));
  CHECK_THAT(problemWith("transformer/config.json", "num_layers", 1),
             containsText("tensors that this model does not have") && containsText("\"blocks.1."));
  CHECK_THAT(problemWith("scheduler/scheduler_config.json", "prediction_type", "epsilon"),
             containsText("prediction_type = \"epsilon\""));
  for (const auto& oracle : testing::oracles()) {
    CHECK_THAT(loadProblem(oracle.checkpoint("wan22-a14b")), containsText("transformer_2"));
    if (!oracle.has("checkpoints/wan21-i2v")) continue;
    CHECK_THAT(loadProblem(oracle.checkpoint("wan21-i2v")), containsText("image_encoder"));
    CHECK_THAT(loadProblem(oracle.checkpoint("wan22-ti2v-5b")), containsText("expand_timesteps"));
  }
}

TEST_CASE("wan denoiser: damaged and missing files are named", "[wan]") {
  TempCheckpoint files;
  files.copy(checkpoint());
  const std::string model = files.path() + "/wan21-t2v";
  const std::string weights = "wan21-t2v/transformer/diffusion_pytorch_model.safetensors";
  SECTION("truncated weights") {
    const std::string whole = testing::readFile(files.path() + "/" + weights);
    files.write(weights, whole.substr(0, whole.size() / 2));
    CHECK_THAT(loadProblem(model), containsText(weights) && containsText("damaged or incomplete"));
  }
  SECTION("no weights") {
    files.remove(weights);
    CHECK_THAT(loadProblem(model), containsText("transformer: no weights"));
  }
  SECTION("no scheduler") {
    files.remove("wan21-t2v/scheduler");
    CHECK_THAT(loadProblem(model), containsText("scheduler_config.json"));
  }
  SECTION("bad JSON") {
    files.write("wan21-t2v/model_index.json", "{\"_class_name\": ");
    CHECK_THAT(loadProblem(model), containsText("model_index.json: not valid JSON"));
  }
  SECTION("no model") { CHECK_THAT(loadProblem(files.path() + "/none"), containsText("none/model_index.json")); }
}

// Of a load that only checks: field and message.
std::pair<std::string, std::string> refusedDegrees(const mesh::MeshDegrees& degrees) {
  WanDenoiser denoiser;
  const Status status = denoiser.load({.model_dir = checkpoint(), .degrees = degrees, .check_only = true});
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  return {fieldOf(status), messageOf(status)};
}

TEST_CASE("wan denoiser: degrees that its heads, layers and branches cannot fill are refused by field", "[wan]") {
  const auto refused = [](const mesh::MeshDegrees& degrees, const std::string& field, const std::string& valid) {
    const auto [at, text] = refusedDegrees(degrees);
    CHECK(at == field);
    CHECK_THAT(text, containsText(field + " = ") && containsText(valid));
  };
  refused({.dp = 2}, "parallel.dp", "it uses cfg, ring, ulysses, pp, tp");
  refused({.spatial = 2}, "parallel.spatial", "it uses cfg, ring, ulysses, pp, tp");
  refused({.cfg = 3}, "parallel.cfg", "guidance has 2 branches, expected 1 or 2");
  refused({.ulysses = 3}, "parallel.ulysses", "4 attention heads do not divide over 3 ranks");
  refused({.ulysses = 4, .tp = 2}, "parallel.ulysses", "2 attention heads do not divide over 4 ranks");
  refused({.tp = 3}, "parallel.tp", "4 attention heads do not divide over 3 ranks");
  refused({.pp = 3}, "parallel.pp", "at most the 2 of the model");
}

TEST_CASE("wan denoiser: what a rank of several will hold is known without loading", "[wan]") {
  const auto bytes = [](const mesh::MeshDegrees& degrees) {
    WanDenoiser denoiser;
    REQUIRE(problem(denoiser.load({.model_dir = checkpoint(), .degrees = degrees, .check_only = true})) == "");
    return denoiser.weightBytes();
  };
  const uint64_t alone = bytes({});
  CHECK(alone == load(checkpoint()).weightBytes());
  CHECK(bytes({.cfg = 2, .ring = 5, .ulysses = 4}) == alone);
  CHECK(bytes({.tp = 2}) < alone);
  CHECK(bytes({.tp = 4}) < bytes({.tp = 2}));
  CHECK(bytes({.pp = 2}) < alone);
  CHECK(bytes({.pp = 2, .tp = 2}) < bytes({.tp = 2}));
}

TEST_CASE("wan denoiser: options and devices it does not know are refused", "[wan]") {
  CHECK_THAT(loadProblem(checkpoint(), {{"guidance_batching", "both"}}),
             containsText("guidance_batching: \"both\" is not auto, batched or separate"));
  CHECK_THAT(loadProblem(checkpoint(), {{"ring_attention", "fast"}}),
             containsText("ring_attention: \"fast\" is not exchange or all_gather"));
  CHECK_THAT(loadProblem(checkpoint(), {{"batching", "auto"}}), containsText("has no option \"batching\""));
  WanDenoiser denoiser;
  CHECK_THAT(problem(denoiser.load({.model_dir = checkpoint(), .device = "tpu"})), containsText("device \"tpu\""));
  CHECK_THAT(problem(denoiser.load({.model_dir = checkpoint(), .device = "cuda"})), containsText("\"cuda:N\""));
  const Status absent = denoiser.load({.model_dir = checkpoint(), .device = "cuda:99"});
  CHECK(absent.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(messageOf(absent), containsText("\"cuda:99\": this process sees"));
  CHECK_THAT(problem(denoiser.load({.model_dir = checkpoint(), .dtype = DType::kInt64})), containsText("dtype int64"));
}

}  // namespace
}  // namespace latentd::stages
