#include "runtime/worker/preflight.h"

#include <map>
#include <nlohmann/json.hpp>

#include "stages/builtin.h"
#include "tests/stages/golden.h"
#include "tests/support/catch.h"

namespace latentd::worker {
namespace {

namespace wire = internal::v1;

std::string demoModel() { return stages::testing::trimmedOracle().checkpoint("wan21-t2v"); }

wire::Load group(const std::string& stage, v1::DType dtype = v1::DTYPE_FLOAT32) {
  wire::Load load;
  load.set_group("g");
  load.set_stage(stage);
  load.set_device("cpu");
  load.set_dtype(dtype);
  if (stage != "noop") load.set_model_dir(demoModel());
  return load;
}

const stages::StageRegistry& registry() {
  static const stages::StageRegistry kRegistry = [] {
    stages::StageRegistry made;
    stages::registerBuiltinStages(made);
    return made;
  }();
  return kRegistry;
}

wire::GroupFindings check(const wire::Load& load) {
  wire::PreflightRequest request;
  *request.add_groups() = load;
  const wire::PreflightResult result = preflight(registry(), request);
  CHECK(result.process_bytes() > (1 << 20));
  REQUIRE(result.groups_size() == 1);
  return result.groups(0);
}

}  // namespace

TEST_CASE("preflight: options come with what it takes for them to matter", "[worker][preflight]") {
  const auto optionsOf = [](const std::string& stage) {
    const wire::GroupFindings findings = check(group(stage));
    std::map<std::string, wire::StageOption> options;
    for (const wire::StageOption& option : findings.options())
      options[option.name()] = option;
    return options;
  };
  auto denoiser = optionsOf("wan.denoiser");
  REQUIRE(denoiser["ring_attention"].matters_with_size() == 1);
  CHECK(denoiser["ring_attention"].matters_with(0) == "parallel.ring");
  CHECK(denoiser["guidance_batching"].matters_with().empty());
  REQUIRE(denoiser["guidance_batching"].idle_with_size() == 2);
  CHECK(denoiser["guidance_batching"].idle_with(0) == "parallel.cfg");
  CHECK(optionsOf("wan.vae_decoder")["tile_overlap"].matters_with(0) == "options.tile_height");
  CHECK(optionsOf("noop")["bytes"].matters_with(0) == "method.source");
  CHECK(optionsOf("noop")["steps"].matters_with().empty());
}

TEST_CASE("preflight: what a load finds is known without one", "[worker][preflight]") {
  const auto stage_name =
      GENERATE(as<std::string>(), "noop", "wan.text_encoder", "wan.denoiser", "wan.vae_decoder", "wan.vae_encoder");
  const auto dtype = GENERATE(v1::DTYPE_FLOAT32, v1::DTYPE_BFLOAT16, v1::DTYPE_FLOAT16);
  CAPTURE(stage_name, dtype);
  const wire::Load load = group(stage_name, dtype);
  const wire::GroupFindings findings = check(load);
  INFO(findings.status().message());
  REQUIRE(findings.status().code() == 0);

  const auto stage = registry().create(stage_name).value();
  stages::LoadContext context;
  context.model_dir = load.model_dir();
  context.dtype = static_cast<DType>(dtype);
  REQUIRE(stage->load(context).ok());
  CHECK(findings.ready().weight_bytes() == stage->weightBytes());
  CHECK(findings.ready().limits().frame_step() == stage->limits().frame_step.value_or(0));
  CHECK(findings.ready().limits().size_multiple() == stage->limits().size_multiple.value_or(0));
  CHECK(static_cast<size_t>(findings.ready().methods_size()) == stage->methods().size());
}

TEST_CASE("preflight: a problem has its field and its words", "[worker][preflight]") {
  wire::Load load = group("wan.denoiser");
  std::string field;
  std::string word;
  SECTION("stage") {
    load.set_stage("wan.denoizer");
    field = "stage";
    word = "wan.denoiser";
  }
  SECTION("unknown option") {
    (*load.mutable_stage_options())["batching"] = "auto";
    field = "options.batching";
    word = "guidance_batching";
  }
  SECTION("bad option") {
    (*load.mutable_stage_options())["guidance_batching"] = "both";
    field = "options.guidance_batching";
    word = "auto, batched or separate";
  }
  SECTION("dtype") {
    load.set_dtype(v1::DTYPE_INT64);
    field = "dtype";
    word = "bfloat16";
  }
  SECTION("device") {
    load.set_device("tpu:0");
    field = "devices";
    word = "cuda:N";
  }
  SECTION("no model") {
    load.clear_model_dir();
    field = "model";
    word = "diffusers directory";
  }
  SECTION("another folder") {
    load.set_model_dir("/proc");
    field = "model";
    word = "/proc/model_index.json";
  }
  const wire::GroupFindings findings = check(load);
  CHECK(findings.status().code() != 0);
  CHECK(findings.field() == field);
  INFO(findings.status().message());
  CHECK(findings.status().message().find(word) != std::string::npos);
  CHECK(!findings.has_ready());
}

TEST_CASE("preflight: stages are described with their methods and options", "[worker][preflight]") {
  const StatusOr<std::string> text = describeStages(registry());
  REQUIRE(text.ok());
  const auto stages = nlohmann::json::parse(*text)["stages"];
  REQUIRE(stages.size() == registry().names().size());
  for (const auto& stage : stages) {
    CHECK(!stage["methods"].empty());
    for (const auto& option : stage.value("options", nlohmann::json::array())) {
      CAPTURE(option.dump());
      CHECK(!option["valid"].get<std::string>().empty());
      CHECK(!option["meaning"].get<std::string>().empty());
      // The default is one of the values that are taken: what is told is what is parsed.
      const std::string value = option.value("default_value", "");
      if (value == "the group's") continue;
      wire::Load load = group(stage["name"]);
      (*load.mutable_stage_options())[option["name"]] = value;
      CHECK(check(load).status().code() == 0);
    }
  }
}

}  // namespace latentd::worker
