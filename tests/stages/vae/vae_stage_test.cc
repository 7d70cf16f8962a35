#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stages/vae/vae_decoder_stage.h"
#include "stages/vae/vae_encoder_stage.h"
#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/temp_checkpoint.h"
#include "tests/stages/vae/stage_fixture.h"
#include "tests/support/contains_text.h"

namespace latentd::stages {
namespace {

using latentd::testing::containsText;
using testing::context;
using testing::Golden;
using testing::inputs;
using testing::job;
using testing::jobOf;
using testing::loadInto;
using testing::maxAbsDifference;
using testing::Oracle;
using testing::oracles;
using testing::problem;
using testing::RecordingContext;
using testing::TempCheckpoint;

constexpr const char* kModel = "wan21-t2v";
constexpr const char* kWeights = "vae/diffusion_pytorch_model.safetensors";

Oracle anOracle() { return oracles().front(); }

TEST_CASE("VAE decoder stage: latents of the goldens' pipelines become their videos", "[vae]") {
  size_t videos = 0;
  for (const Oracle& oracle : oracles()) {
    VaeDecoderStage stage;
    loadInto(stage, oracle.checkpoint(kModel));
    for (const std::string& name : oracle.goldens(kModel, "pipeline")) {
      const Golden golden(oracle, name);
      // Those made in bfloat16 have another decoder; batches are several jobs.
      if (name.ends_with("_bf16") || !golden.has("video")) continue;
      const at::Tensor latents = golden.tensor("latents_final");
      for (int64_t i = 0; i < latents.size(0); ++i) {
        INFO(oracle.name << ": " << name << ", video " << i);
        const at::Tensor one = latents.narrow(0, i, 1);
        RecordingContext run;
        auto outputs = stage.run("decode", jobOf(one), inputs("latents", one), run);
        REQUIRE(problem(outputs.status()) == "");
        const at::Tensor video = at::cat(run.written).permute({0, 3, 1, 2});
        CHECK(maxAbsDifference(video, golden.tensor("video")[i]) <= 5e-5);
        CHECK(video.min().item<float>() >= 0);
        CHECK(video.max().item<float>() <= 1);
        ++videos;
      }
    }
  }
  REQUIRE(videos > 0);
}

TEST_CASE("VAE decoder stage: the first frame leaves before the next chunk is decoded", "[vae]") {
  VaeDecoderStage stage;
  loadInto(stage, anOracle().checkpoint(kModel));
  const at::Tensor latents = at::randn({1, 16, 3, 2, 3});
  RecordingContext run;
  const auto outputs = stage.run("decode", jobOf(latents), inputs("latents", latents), run);
  REQUIRE(problem(outputs.status()) == "");
  CHECK(run.events == std::vector<std::string>{"begin 0/3", "write 1", "end 0/3", "begin 1/3", "write 4", "end 1/3",
                                               "begin 2/3", "write 4", "end 2/3"});
  size_t leaves = 0;
  outputs->forEachLeaf([&](const at::Tensor&) { ++leaves; });
  CHECK(leaves == 0);
}

namespace {

// A job that is cancelled, or whose frames cannot be written, leaves nothing for the next one. `look` sees the second.
void stopsBetweenChunks(VaeDecoderStage& stage, const std::function<void(uint32_t, const RecordingContext&)>& look) {
  const at::Tensor latents = at::randn({1, 16, 3, 2, 3});
  const auto run = [&](RecordingContext& context) {
    return stage.run("decode", jobOf(latents), inputs("latents", latents), context).status();
  };
  RecordingContext whole;
  REQUIRE(problem(run(whole)) == "");
  for (uint32_t step : {0u, 1u, 2u}) {
    RecordingContext cancelled;
    cancelled.cancel_at = step;
    CHECK(run(cancelled).code() == absl::StatusCode::kCancelled);
    CHECK(cancelled.written.size() == step);
    RecordingContext broken;
    broken.fail_at = step + 1;
    CHECK(run(broken).code() == absl::StatusCode::kUnavailable);
    look(step, broken);
    RecordingContext again;
    CHECK(problem(run(again)) == "");
    CHECK(at::cat(again.written).equal(at::cat(whole.written)));
  }
}

}  // namespace

TEST_CASE("VAE decoder stage: a job stopped between chunks leaves the stage as new", "[vae]") {
  VaeDecoderStage stage;
  loadInto(stage, anOracle().checkpoint(kModel));
  stopsBetweenChunks(stage, [](uint32_t step, const RecordingContext& broken) {
    CHECK(broken.events.back() == fmt::format("write {}", step == 0 ? 1 : 4));
  });
}

TEST_CASE("VAE decoder stage: inputs that do not fit are refused by name", "[vae]") {
  VaeDecoderStage stage;
  loadInto(stage, anOracle().checkpoint(kModel));
  const at::Tensor good = at::zeros({1, 16, 2, 2, 2});
  const SamplingParameters parameters = jobOf(good);
  RecordingContext run;
  const auto refusal = [&](const std::string& method, const SamplingParameters& asked, const TensorTree& given) {
    const auto outputs = stage.run(method, asked, given, run);
    CHECK(outputs.status().code() == absl::StatusCode::kInvalidArgument);
    return messageOf(outputs.status());
  };
  CHECK_THAT(refusal("encode", parameters, inputs("latents", good)), containsText("encode") && containsText("decode"));
  CHECK_THAT(refusal("decode", parameters, inputs("latent", good)), containsText("\"latents\" is missing"));
  CHECK_THAT(refusal("decode", parameters, TensorTree()), containsText("\"latents\" is missing"));
  CHECK_THAT(refusal("decode", parameters, inputs("latents", at::Tensor())), containsText("no tensor"));
  for (const at::Tensor& bad : {at::zeros({1, 48, 2, 2, 2}), at::zeros({2, 16, 2, 2, 2}), at::zeros({16, 2, 2, 2}),
                                at::zeros({1, 16, 0, 2, 2}), at::zeros({1, 16, 2, 2, 2}, at::kLong)}) {
    CHECK_THAT(refusal("decode", parameters, inputs("latents", bad)),
               containsText("latents") && containsText("[1, 16, frames, height, width]"));
  }
  CHECK_THAT(refusal("decode", job(9, 16, 16), inputs("latents", good)),
             containsText("5x16x16") && containsText("9x16x16"));
  CHECK_THAT(refusal("decode", job(5, 16, 24), inputs("latents", good)), containsText("5x16x24"));
  CHECK(run.events.empty());
  run.has_sink = false;
  CHECK_THAT(refusal("decode", parameters, inputs("latents", good)), containsText("frame sink"));
}

TEST_CASE("VAE stages: limits, methods and what is loaded", "[vae]") {
  VaeDecoderStage decoder;
  VaeEncoderStage encoder;
  const std::string checkpoint = anOracle().checkpoint(kModel);
  double last = 0;
  LoadContext load = context(checkpoint);
  load.progress = [&](double fraction, const std::string& detail) {
    CHECK(fraction >= last);
    CHECK_THAT(detail, containsText("safetensors"));
    last = fraction;
  };
  REQUIRE(problem(decoder.load(load)) == "");
  CHECK(last == 1.0);
  loadInto(encoder, checkpoint);
  for (const Stage* stage : {static_cast<const Stage*>(&decoder), static_cast<const Stage*>(&encoder)}) {
    CHECK(stage->limits().frame_step == 4u);
    CHECK(stage->limits().size_multiple == 8u);
    CHECK_FALSE(stage->limits().frames_max.has_value());
    CHECK(stage->methods().size() == 1);
  }
  CHECK(decoder.methods()[0].emits_frames);
  CHECK_FALSE(encoder.methods()[0].emits_frames);
  // Each loads its half only.
  const auto both = vae::AutoencoderKLWan::load(checkpoint + "/vae", {});
  REQUIRE(problem(both.status()) == "");
  CHECK(decoder.weightBytes() + encoder.weightBytes() == both->weightBytes());
  CHECK(decoder.weightBytes() > 0);
  CHECK(encoder.weightBytes() > 0);
}

TEST_CASE("VAE decoder stage: bfloat16 weights emit float32 frames near those of float32", "[vae]") {
  VaeDecoderStage exact;
  VaeDecoderStage rounded;
  loadInto(exact, anOracle().checkpoint(kModel));
  loadInto(rounded, anOracle().checkpoint(kModel), DType::kBFloat16);
  CHECK(rounded.weightBytes() * 2 == exact.weightBytes());
  const at::Tensor latents = at::randn({1, 16, 2, 4, 4});
  std::vector<at::Tensor> videos;
  for (Stage* stage : {static_cast<Stage*>(&exact), static_cast<Stage*>(&rounded)}) {
    RecordingContext run;
    REQUIRE(problem(stage->run("decode", jobOf(latents), inputs("latents", latents), run).status()) == "");
    videos.push_back(at::cat(run.written));
  }
  CHECK(testing::rmsDifference(videos[1], videos[0]) <= 0.02);  // the goldens' bf16 is 4e-3 to 1.5e-2 off
  CHECK_FALSE(videos[1].equal(videos[0]));
}

TEST_CASE("VAE stages: on a device frames arrive on the host in order, while the next are decoded", "[vae][cuda]") {
  if (!testing::hasCuda()) return;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    VaeDecoderStage here;
    VaeDecoderStage there;
    loadInto(here, anOracle().checkpoint(kModel), dtype);
    LoadContext load = context(anOracle().checkpoint(kModel), dtype);
    load.device = testing::kCudaName;
    REQUIRE(problem(there.load(load)) == "");
    REQUIRE(problem(there.warmUp()) == "");
    const at::Tensor latents = at::randn({1, 16, 4, 4, 6});
    RecordingContext expected;
    REQUIRE(problem(here.run("decode", jobOf(latents), inputs("latents", latents), expected).status()) == "");
    RecordingContext run;
    {
      const testing::HostNeverWaits guard;
      REQUIRE(problem(there.run("decode", jobOf(latents), inputs("latents", latents), run).status()) == "");
    }
    CHECK(run.events == std::vector<std::string>{"begin 0/4", "begin 1/4", "write 1", "end 0/4", "begin 2/4", "write 4",
                                                 "end 1/4", "begin 3/4", "write 4", "end 2/4", "write 4", "end 3/4"});
    const at::Tensor video = at::cat(run.written);
    CHECK(video.is_cpu());
    if (dtype == DType::kFloat32) {
      CHECK(maxAbsDifference(video, at::cat(expected.written)) <= 1e-4);
    } else {
      CHECK(testing::rmsDifference(video, at::cat(expected.written)) <= 0.02);
    }
  }
}

TEST_CASE("VAE stages: on a device a job stopped between chunks leaves the stage as new", "[vae][cuda]") {
  if (!testing::hasCuda()) return;
  VaeDecoderStage stage;
  LoadContext load = context(anOracle().checkpoint(kModel), DType::kBFloat16);
  load.device = testing::kCudaName;
  REQUIRE(problem(stage.load(load)) == "");
  stopsBetweenChunks(stage, [](uint32_t, const RecordingContext&) {});
}

TEST_CASE("VAE encoder stage: videos of the goldens become their normalised latents", "[vae]") {
  for (const Oracle& oracle : oracles()) {
    VaeEncoderStage stage;
    loadInto(stage, oracle.checkpoint(kModel));
    const Golden golden(oracle, std::string(kModel) + "/vae");
    for (int i = 0; golden.has(fmt::format("enc{}.video", i)); ++i) {
      INFO(oracle.name << " enc" << i);
      const at::Tensor video = golden.tensor(fmt::format("enc{}.video", i));
      RecordingContext run;
      const auto outputs =
          stage.run("encode", job(video.size(2), video.size(3), video.size(4)), inputs("video", video), run);
      REQUIRE(problem(outputs.status()) == "");
      const at::Tensor expected = golden.tensor(fmt::format("enc{}.normalized", i));
      const TensorTree* latents = outputs->find("latents");
      REQUIRE(latents != nullptr);
      CHECK(maxAbsDifference(*latents->getIf<at::Tensor>(), expected) <= 2e-5);
      CHECK(run.events.size() == static_cast<size_t>(2 * expected.size(2)));
      RecordingContext cancelled;
      cancelled.cancel_at = static_cast<uint32_t>(expected.size(2) - 1);
      CHECK(stage.run("encode", job(video.size(2), video.size(3), video.size(4)), inputs("video", video), cancelled)
                .status()
                .code() == absl::StatusCode::kCancelled);
    }
  }
}

TEST_CASE("VAE encoder stage: frames and sizes that do not divide are refused", "[vae]") {
  VaeEncoderStage stage;
  loadInto(stage, anOracle().checkpoint(kModel));
  RecordingContext run;
  const auto refusal = [&](int64_t frames, int64_t height, int64_t width) {
    const auto outputs =
        stage.run("encode", job(frames, height, width), inputs("video", at::zeros({1, 3, frames, height, width})), run);
    CHECK(outputs.status().code() == absl::StatusCode::kInvalidArgument);
    return messageOf(outputs.status());
  };
  CHECK_THAT(refusal(4, 16, 16), containsText("4 frames") && containsText("1 + 4k"));
  CHECK_THAT(refusal(5, 12, 16), containsText("16x12") && containsText("multiples of 8"));
  CHECK_THAT(refusal(5, 16, 20), containsText("20x16"));
  CHECK(run.events.empty());
}

TEST_CASE("VAE stages: checkpoints that cannot be served are refused at load, by name", "[vae]") {
  const std::string checkpoint = anOracle().checkpoint(kModel);
  TempCheckpoint files;
  files.copy(checkpoint + "/vae");
  files.copy(checkpoint + "/model_index.json");
  const std::string weights = testing::readFile(files.path() + "/" + kWeights);
  const std::string config = testing::readFile(files.path() + "/vae/config.json");
  const std::string index = testing::readFile(files.path() + "/model_index.json");
  const auto refusal = [&](const LoadContext& load) {
    VaeDecoderStage stage;
    const Status status = stage.load(load);
    CHECK_FALSE(status.ok());
    return status.ToString();
  };
  const auto refused = [&] { return refusal(context(files.path())); };
  const auto replaced = [](std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  {
    VaeDecoderStage stage;
    REQUIRE(problem(stage.load(context(files.path()))) == "");
  }
  SECTION("another class") {
    files.write("model_index.json", replaced(index, "AutoencoderKLWan", "AutoencoderTiny"));
    CHECK_THAT(refused(),
               containsText("model_index.json") && containsText("AutoencoderTiny") && containsText("AutoencoderKLWan"));
  }
  SECTION("no index") {
    files.remove("model_index.json");
    CHECK_THAT(refused(), containsText("model_index.json"));
  }
  SECTION("a truncated file") {
    files.write(kWeights, weights.substr(0, weights.size() - 4));
    CHECK_THAT(refused(), containsText("diffusion_pytorch_model.safetensors"));
  }
  SECTION("a missing tensor of the half that is run, and of the other one") {
    for (const std::string name : {"decoder.conv_in.weight", "encoder.conv_in.weight"}) {
      const std::string other = name.substr(0, name.size() - 1) + "s";
      files.write(kWeights, replaced(weights, '"' + name + '"', '"' + other + '"'));
      CHECK_THAT(refused(), containsText('"' + name + '"') && containsText("missing"));
    }
  }
  SECTION("another shape than the configuration's, in either half") {
    files.write("vae/config.json", replaced(config, "\"decoder_base_dim\": null", "\"decoder_base_dim\": 4"));
    CHECK_THAT(refused(), containsText(kWeights) && containsText("decoder.conv_in.weight") && containsText("shape"));
    const std::string wider = replaced(config, "\"decoder_base_dim\": null", "\"decoder_base_dim\": 3");
    files.write("vae/config.json", replaced(wider, "\"base_dim\": 3,", "\"base_dim\": 4,"));
    CHECK_THAT(refused(), containsText(kWeights) && containsText("encoder.conv_in.weight") && containsText("shape"));
  }
  SECTION("layers that the weights do not have") {
    files.write("vae/config.json", replaced(config, "\"attn_scales\": []", "\"attn_scales\": [1.0]"));
    CHECK_THAT(refused(), containsText("encoder.down_blocks.1.norm.gamma") && containsText("missing"));
  }
  SECTION("a key that might change the model") {
    files.write("vae/config.json", replaced(config, "\"z_dim\"", "\"sharpen\": true, \"z_dim\""));
    CHECK_THAT(refused(), containsText("config.json") && containsText("sharpen"));
  }
  SECTION("what the topology asks for") {
    CHECK_THAT(refusal(context(files.path(), DType::kInt64)), containsText("int64") && containsText("float32"));
    LoadContext load = context(files.path());
    load.device = "tpu:0";
    CHECK_THAT(refusal(load), containsText("tpu:0") && containsText("cpu"));
    load = context(files.path());
    load.options["tiling"] = "true";
    CHECK_THAT(refusal(load), containsText("tiling"));
  }
}

}  // namespace
}  // namespace latentd::stages
