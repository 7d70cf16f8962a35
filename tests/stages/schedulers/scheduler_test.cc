#include "stages/schedulers/scheduler.h"

#include <ATen/ops/stack.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/stages/cuda_device.h"
#include "tests/stages/golden.h"
#include "tests/stages/temp_checkpoint.h"
#include "tests/support/contains_text.h"

namespace latentd::stages {
namespace {

using latentd::testing::containsText;
using nlohmann::json;
using testing::Golden;
using testing::identical;
using testing::maxAbsDifference;
using testing::problem;
using testing::TempCheckpoint;

StatusOr<SchedulerConfig> read(const json& config) {
  TempCheckpoint files;
  return readSchedulerConfig(files.write("scheduler_config.json", config.dump()));
}

// A scheduler as the reference makes it from these options.
std::unique_ptr<Scheduler> make(const std::string& kind, const json& options) {
  json config = options;
  if (kind == "unipc") {
    config["_class_name"] = "UniPCMultistepScheduler";
    config["prediction_type"] = "flow_prediction";
    config["use_flow_sigmas"] = true;
  } else {
    config["_class_name"] = "FlowMatchEulerDiscreteScheduler";
  }
  auto parsed = read(config);
  REQUIRE(problem(parsed.status()) == "");
  return makeScheduler(*parsed, std::nullopt);
}

TEST_CASE("scheduler: timesteps and sigmas equal the reference's table bit for bit", "[schedulers][golden]") {
  for (const auto& oracle : testing::oracles()) {
    const Golden table(oracle, "schedulers/schedule_table");
    int checked = 0;
    for (const std::string& name : table.names()) {
      char kind[16];
      double shift = 0;
      int steps = 0;
      int end = 0;
      if (std::sscanf(name.c_str(), "%15[^.].shift%lf.n%d.sigmas%n", kind, &shift, &steps, &end) != 3 || end == 0) {
        continue;
      }
      INFO(oracle.name << " " << name);
      const auto scheduler = make(kind, {{std::string(kind) == "unipc" ? "flow_shift" : "shift", shift}});
      scheduler->setTimesteps(steps);
      CHECK(identical(scheduler->sigmas(), table.tensor(name)));
      const std::string timesteps = name.substr(0, name.size() - std::string("sigmas").size()) + "timesteps";
      CHECK(identical(scheduler->timesteps(), table.tensor(timesteps)));
      ++checked;
    }
    CHECK(checked >= 56);
  }
}

at::Tensor trajectory(Scheduler& scheduler, const Golden& golden, int64_t steps, at::ScalarType dtype) {
  scheduler.setTimesteps(steps);
  const at::Tensor outputs = golden.tensor("model_outputs");
  at::Tensor sample = golden.tensor("sample0");
  at::Tensor samples;
  for (int64_t i = 0; i < steps; ++i) {
    sample = scheduler.step(outputs[i].to(dtype), sample);
    if (!samples.defined()) samples = sample.unsqueeze(0).repeat({steps, 1, 1, 1, 1, 1});
    samples[i].copy_(sample);
  }
  return samples;
}

struct Trajectory {
  const Golden& golden;
  std::string name;
  json options;
  std::string kind;
  int steps;
  bool bf16;

  std::unique_ptr<Scheduler> scheduler() const { return make(kind, options); }
  at::ScalarType dtype() const { return bf16 ? at::kBFloat16 : at::kFloat; }
};

// Calls check for each trajectory of the goldens.
void forEachTrajectory(const std::function<void(const Trajectory&)>& check) {
  for (const auto& oracle : testing::oracles()) {
    const Golden golden(oracle, "schedulers/schedulers");
    const json meta = golden.meta();
    int checked = 0;
    for (const std::string& name : golden.names()) {
      char kind[16];
      char tag[32];
      int steps = 0;
      char rest[32];
      if (std::sscanf(name.c_str(), "%15[^.].%31[^.].n%d.%31s", kind, tag, &steps, rest) != 4) continue;
      const bool bf16 = std::string(rest) == "bf16.latents";
      if (!bf16 && std::string(rest) != "latents") continue;
      const json& options = meta.at(std::string(kind) + "." + tag);
      // Euler's entries are [options, arguments of set_timesteps]; a schedule given by hand is not ours.
      if (options.is_array() && !options[1].empty()) continue;
      INFO(oracle.name << " " << name);
      check({golden, name, options.is_array() ? options[0] : options, kind, steps, bf16});
      ++checked;
    }
    CHECK(checked >= 15);
  }
}

TEST_CASE("scheduler: trajectories follow the reference", "[schedulers][golden]") {
  forEachTrajectory([](const Trajectory& given) {
    const auto scheduler = given.scheduler();
    const at::Tensor ours = trajectory(*scheduler, given.golden, given.steps, given.dtype());
    at::Tensor theirs = given.golden.tensor(given.name);
    CHECK(ours.scalar_type() == theirs.scalar_type());
    CHECK(ours.isfinite().all().item<bool>());
    if (given.options.value("solver_type", "") == "bh1") {
      // The reference's own last step is inf * 0 here; all but it are compared, and ours is finite.
      REQUIRE(theirs[given.steps - 1].isnan().all().item<bool>());
      theirs = theirs.clone();
      theirs[given.steps - 1].copy_(ours[given.steps - 1]);
    }
    CHECK(maxAbsDifference(ours, theirs) <= 2e-5);
    // A second job through the same object gives the same.
    CHECK(identical(trajectory(*scheduler, given.golden, given.steps, given.dtype()), ours));
  });
}

TEST_CASE("scheduler: on a device trajectories are a CPU's, and the host never waits", "[schedulers][golden][cuda]") {
  if (!testing::hasCuda()) return;
  forEachTrajectory([](const Trajectory& given) {
    const at::Tensor expected = trajectory(*given.scheduler(), given.golden, given.steps, given.dtype());
    const at::Tensor outputs = given.golden.tensor("model_outputs").to(testing::cudaDevice(), given.dtype());
    at::Tensor sample = given.golden.tensor("sample0").to(testing::cudaDevice());
    const auto scheduler = given.scheduler();
    scheduler->setTimesteps(given.steps);
    std::vector<at::Tensor> samples;
    {
      const testing::HostNeverWaits guard;
      for (int64_t i = 0; i < given.steps; ++i) {
        sample = scheduler->step(outputs[i], sample);
        samples.push_back(sample);
      }
    }
    CHECK(sample.device() == testing::cudaDevice());
    CHECK(sample.scalar_type() == expected.scalar_type());
    // In bfloat16 a device does not round sigma before its product with the velocity, a CPU does.
    CHECK(maxAbsDifference(at::stack(samples), expected) <= (given.bf16 ? 0.05 : 2e-5));
  });
}

// Takes the models' raw outputs from a pipeline's golden: guidance and solver alone.
TEST_CASE("scheduler: pipelines' latents follow from the models' outputs", "[schedulers][golden]") {
  for (const auto& oracle : testing::oracles()) {
    for (const char* model : {"wan21-t2v", "wan22-a14b", "wan22-ti2v-5b"}) {
      for (const std::string& name : oracle.goldens(model, "pipeline_unipc")) {
        const Golden golden(oracle, name);
        const json meta = golden.meta();
        if (!golden.has("noise_cond")) continue;
        INFO(oracle.name << " " << name);
        const bool unipc = meta["scheduler"] == "UniPCMultistepScheduler";
        const auto scheduler = make(unipc ? "unipc" : "euler", meta["scheduler_config"]);
        scheduler->setTimesteps(meta["steps"].get<int64_t>());
        CHECK(identical(scheduler->timesteps(), golden.tensor("timesteps")));
        CHECK(identical(scheduler->sigmas(), golden.tensor("sigmas")));
        at::Tensor latents = golden.tensor("latents_init");
        double worst = 0;
        for (int64_t i = 0; i < meta["steps"].get<int64_t>(); ++i) {
          const bool second = meta["model_per_step"][i] == "transformer_2" && !meta["guidance_scale_2"].is_null();
          const double guidance = meta[second ? "guidance_scale_2" : "guidance_scale"].get<double>();
          at::Tensor velocity = golden.tensor("noise_cond")[i];
          if (golden.has("noise_uncond")) {
            const at::Tensor uncond = golden.tensor("noise_uncond")[i];
            velocity = uncond.add(velocity.sub(uncond).mul(guidance));
          }
          latents = scheduler->step(velocity, latents);
          worst = std::max(worst, maxAbsDifference(latents, golden.tensor("latents_steps")[i]));
        }
        CHECK(worst <= 2e-5);
      }
    }
  }
}

TEST_CASE("scheduler: repeated timesteps do not confuse it", "[schedulers]") {
  const auto scheduler = make("unipc", {{"flow_shift", 12.0}});
  scheduler->setTimesteps(85);
  const at::Tensor timesteps = scheduler->timesteps();
  REQUIRE(timesteps.slice(0, 0, 84).eq(timesteps.slice(0, 1, 85)).any().item<bool>());
  at::Tensor sample = at::Tensor(scheduler->sigmas().slice(0, 0, 4)).view({1, 4});
  for (int i = 0; i < 85; ++i)
    sample = scheduler->step(sample.mul(0.1), sample);
  CHECK(sample.isfinite().all().item<bool>());
}

TEST_CASE("scheduler: a shift of the job replaces that of the checkpoint", "[schedulers]") {
  for (const char* kind : {"unipc", "euler"}) {
    const char* key = std::string(kind) == "unipc" ? "flow_shift" : "shift";
    json config = {{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {key, 3.0}};
    if (std::string(kind) == "unipc") {
      config["_class_name"] = "UniPCMultistepScheduler";
      config["prediction_type"] = "flow_prediction";
      config["use_flow_sigmas"] = true;
    }
    const auto parsed = read(config);
    REQUIRE(parsed.ok());
    const auto shifted = makeScheduler(*parsed, 5.0);
    const auto plain = make(kind, {{key, 5.0}});
    shifted->setTimesteps(7);
    plain->setTimesteps(7);
    CHECK(identical(shifted->sigmas(), plain->sigmas()));
  }
}

TEST_CASE("scheduler: what is not implemented is refused by name", "[schedulers]") {
  const json unipc = {
      {"_class_name", "UniPCMultistepScheduler"}, {"prediction_type", "flow_prediction"}, {"use_flow_sigmas", true}};
  const json euler = {{"_class_name", "FlowMatchEulerDiscreteScheduler"}};
  const auto refusal = [](json config, const char* key, const json& value) {
    config[key] = value;
    return problem(read(config).status());
  };
  CHECK_THAT(refusal(unipc, "_class_name", "DDIMScheduler"), containsText("_class_name = \"DDIMScheduler\""));
  CHECK_THAT(refusal(unipc, "prediction_type", "epsilon"), containsText("prediction_type = \"epsilon\""));
  CHECK_THAT(refusal(unipc, "use_flow_sigmas", false), containsText("use_flow_sigmas = false"));
  CHECK_THAT(refusal(unipc, "solver_type", "bh3"), containsText("solver_type = \"bh3\""));
  CHECK_THAT(refusal(unipc, "solver_order", 0), containsText("solver_order = 0"));
  CHECK_THAT(refusal(unipc, "predict_x0", false), containsText("predict_x0 = false"));
  CHECK_THAT(refusal(unipc, "thresholding", true), containsText("thresholding = true"));
  CHECK_THAT(refusal(unipc, "use_karras_sigmas", true), containsText("use_karras_sigmas = true"));
  CHECK_THAT(refusal(unipc, "use_dynamic_shifting", true), containsText("use_dynamic_shifting = true"));
  CHECK_THAT(refusal(unipc, "shift_terminal", 0.1), containsText("shift_terminal = 0.1"));
  CHECK_THAT(refusal(unipc, "flow_shift", -1.0), containsText("flow_shift = -1.0"));
  CHECK_THAT(refusal(unipc, "brand_new_option", 2), containsText("brand_new_option = 2"));
  CHECK_THAT(refusal(euler, "stochastic_sampling", true), containsText("stochastic_sampling = true"));
  CHECK_THAT(refusal(euler, "invert_sigmas", true), containsText("invert_sigmas = true"));
  CHECK_THAT(refusal(euler, "shift", 0), containsText("shift = 0"));
  for (const auto& oracle : testing::oracles()) {
    CHECK(problem(readSchedulerConfig(oracle.checkpoint("wan21-t2v") + "/scheduler/scheduler_config.json").status()) ==
          "");
  }
}

}  // namespace
}  // namespace latentd::stages
