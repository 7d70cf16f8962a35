#include "tools/plan/command.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "tests/support/catch.h"
#include "tests/tools/plan/model_fixture.h"

namespace latentd::plan {
namespace {

Arguments argumentsFor(const std::string& model, const std::string& gpus) {
  Arguments arguments;
  arguments.model = model;
  arguments.gpus = gpus;
  return arguments;
}

std::string refusal(const Arguments& arguments) {
  const auto text = run(arguments);
  return text.ok() ? "OK" : messageOf(text.status());
}

const config::GroupSpec& groupOf(const config::Topology& topology, const std::string& name) {
  const auto group = std::find_if(topology.groups.begin(), topology.groups.end(),
                                  [&](const config::GroupSpec& spec) { return spec.name == name; });
  REQUIRE(group != topology.groups.end());
  return *group;
}

}  // namespace

TEST_CASE("plan: the topology that it writes is one that loads, and says what was proposed", "[tools][plan]") {
  const ModelFolder model(kWan14);
  const std::string file = model.path() + "/plan.yaml";
  for (const char* gpus : {"1", "2", "3", "4", "8"}) {
    for (const char* goal : {"latency", "throughput"}) {
      Arguments arguments = argumentsFor(model.path(), gpus);
      arguments.goal = goal;
      arguments.yaml = file;
      arguments.size = "1280x720";
      REQUIRE(run(arguments).status().ToString() == "OK");
      const auto topology = config::loadTopology(file, {});
      std::filesystem::remove(file);
      INFO("gpus " << gpus << ", goal " << goal);
      REQUIRE(topology.status().ToString() == "OK");

      const Request request = *makeRequest(arguments);
      const Candidate proposed = *search(request)->proposal();
      const mesh::MeshDegrees& degrees = proposed.split.degrees;
      const bool is_replicated = degrees.dp > 1;
      const config::GroupSpec& denoise = groupOf(*topology, is_replicated ? "denoise.0" : "denoise");
      CHECK(denoise.ranks() == proposed.split.ranks());
      CHECK(denoise.parallel.cfg == degrees.cfg);
      CHECK(denoise.parallel.ulysses == degrees.ulysses);
      CHECK(denoise.parallel.ring == degrees.ring);
      CHECK(denoise.dtype == DType::kBFloat16);
      CHECK(topology->groups.size() == 2 + degrees.dp);
      CHECK(groupOf(*topology, "decode").parallel.spatial == proposed.decode_gpus);
      CHECK(groupOf(*topology, "text").devices.front().index == proposed.text_gpu);
      CHECK(denoise.model_dir == request.model.dir);
      CHECK(topology->defaults.width == 1280U);
      CHECK(topology->defaults.steps == 50U);
      CHECK(topology->defaults.fps == 16);
      CHECK(topology->limits.frames_max == 81U);
      CHECK(topology->limits.pixels_max == 1280U * 720);
      CHECK(topology->limits.steps_max == 50U);
      CHECK(topology->limits.guidance_max == 100);
    }
  }
}

TEST_CASE("plan: the topology can be printed, and no file is overwritten", "[tools][plan]") {
  const ModelFolder model(kWan13);
  Arguments arguments = argumentsFor(model.path(), "2");
  arguments.yaml = "-";
  const auto printed = run(arguments);
  REQUIRE(printed.ok());
  CHECK(printed->find("cfg: 2") != std::string::npos);
  CHECK(config::parseTopology(*printed, "t.yaml", {}).status().ToString() == "OK");

  arguments.yaml = model.folder().write("taken.yaml", "mine");
  CHECK(refusal(arguments).find("taken.yaml' exists; remove it or name another file") != std::string::npos);
  CHECK(stages::testing::readFile(arguments.yaml) == "mine");
  arguments.yaml = model.path() + "/no/folder.yaml";
  CHECK(refusal(arguments).find("--yaml: create") == 0);
  // Two hosts are predicted; there is nothing to start them with, and one does not fit.
  const ModelFolder large(kWan14);
  arguments = argumentsFor(large.path(), "2");
  arguments.gpus_per_host = "1";
  arguments.memory = "40GiB";
  arguments.yaml = "-";
  CHECK(refusal(arguments).find("--yaml: this version serves none of what fits (several hosts); give --gpus 1") == 0);
}

TEST_CASE("plan: a plan without guidance allows none, since that takes more memory", "[tools][plan]") {
  const ModelFolder model(kWan13);
  Arguments arguments = argumentsFor(model.path(), "1");
  arguments.yaml = "-";
  arguments.guidance = "1";
  const auto topology = config::parseTopology(*run(arguments), "t.yaml", {});
  REQUIRE(topology.status().ToString() == "OK");
  CHECK(topology->limits.guidance_max == 1);
}

TEST_CASE("plan: the report has the best, what is proposed and why the rest is out", "[tools][plan]") {
  const ModelFolder model(kWan13);
  const auto text = run(argumentsFor(model.path(), "8"));
  REQUIRE(text.ok());
  for (const char* words :
       {"1.42 billion parameters", "32760 tokens", "a step on one GPU: 1.20 s", "<- proposed",
        "proposed: cfg 2 x ulysses 4", "a rank sends a step: cfg ", "\nnot possible, by the limit that forbids it:\n",
        "  ulysses x tp must divide the model's 12 heads: tp 5; ", "\n  dp is for --goal throughput: ", "text encoder",
        "weights", "\n  heads scattered over cuda_ipc, as its ranks are on GPUs of one host that NVLink joins\n"}) {
    INFO(words);
    CHECK(text->find(words) != std::string::npos);
  }
  Arguments hosts = argumentsFor(model.path(), "16");
  const auto both = run(hosts);
  REQUIRE(both.ok());
  CHECK(both->find("not served yet: several hosts") != std::string::npos);
  // The best of one host, and what that leaves.
  CHECK(both->find("proposed: cfg 2 x ulysses 4\n  uses 8 of the 16 GPUs: this version serves one host, of 8\n") !=
        std::string::npos);
  CHECK(text->find(" of the 8 GPUs") == std::string::npos);
  Arguments slow = argumentsFor(model.path(), "8");
  slow.link = "pcie";
  const auto packed = run(slow);
  REQUIRE(packed.ok());
  CHECK(packed->find("\n  heads scattered over c10d, as GPUs that PCIe joins need not be peers\n") !=
        std::string::npos);
  // A denoiser of one rank has a decoder beside it, on another GPU.
  const auto rows = run(argumentsFor(model.path(), "2"));
  REQUIRE(rows.ok());
  CHECK(rows->find("\none rank ") != std::string::npos);
  CHECK(rows->find("\none GPU ") == std::string::npos);
  CHECK(rows->find("heads scattered over") == std::string::npos);  // it proposes none that has ulysses
}

TEST_CASE("plan: the JSON has every candidate and every rejected split", "[tools][plan]") {
  const ModelFolder model(kWan13);
  Arguments arguments = argumentsFor(model.path(), "4");
  arguments.json = true;
  const auto text = run(arguments);
  REQUIRE(text.ok());
  const auto report = nlohmann::json::parse(*text);
  const Request request = *makeRequest(arguments);
  const auto plan = search(request);
  CHECK(report["ranked"].size() == plan->ranked.size());
  CHECK(report["rejected"].size() == plan->rejected.size());
  CHECK(report["request"]["tokens"] == 32'760);
  CHECK(report["proposal"]["parallel"]["cfg"] == plan->proposal()->split.degrees.cfg);
  CHECK(report["proposal"]["gpus"] == plan->proposal()->usedGpus());
  CHECK(report["proposal"]["denoiser_gpus"] == plan->proposal()->split.gpus());
  CHECK(report["proposal"]["sent_bytes_a_step"]["total"] == plan->proposal()->traffic.total());
  for (const nlohmann::json& candidate : report["ranked"]) {
    INFO(candidate["parallel"].dump());
    const bool scatters = candidate["parallel"]["ulysses"] > 1;
    CHECK(candidate["ulysses_transport"] == (scatters ? nlohmann::json("cuda_ipc") : nlohmann::json()));
    CHECK(candidate["ulysses_transport_reason"].is_string() == scatters);
  }
  CHECK(report["one_gpu_step_seconds"]["total"].get<double>() == Approx(1.201).epsilon(0.01));
}

TEST_CASE("plan: wrong flags are refused by name, with what is valid", "[tools][plan]") {
  const ModelFolder model(kWan13);
  const Arguments good = argumentsFor(model.path(), "1");
  REQUIRE(refusal(good) == "OK");
  const auto with = [&](std::string Arguments::*flag, const char* value) {
    Arguments arguments = good;
    arguments.*flag = value;
    return refusal(arguments);
  };
  const stages::testing::TempCheckpoint empty;
  CHECK(with(&Arguments::model, empty.path().c_str()) ==
        "--model: '" + empty.path() + "' has no model_index.json; give the diffusers directory that has it");
  CHECK(with(&Arguments::gpus, "0") == "--gpus: got '0', expected an integer from 1 to 64");
  CHECK(with(&Arguments::gpus, "-1").find("--gpus: got '-1'") == 0);
  CHECK(with(&Arguments::gpus, "65").find("--gpus: got '65'") == 0);
  CHECK(with(&Arguments::model, "no/model").find("--model: 'no/model' is not a folder") == 0);
  CHECK(with(&Arguments::gpu, "tpu").find("--gpu: 'tpu' is not known") == 0);
  CHECK(with(&Arguments::link, "usb").find("--link: 'usb'") == 0);
  CHECK(with(&Arguments::size, "832").find("--size: got '832'") == 0);
  CHECK(with(&Arguments::size, "833x480").find("--size (width) = 833: ") == 0);
  CHECK(with(&Arguments::frames, "80").find("--frames = 80: expected 1 plus a multiple of 4") == 0);
  CHECK(with(&Arguments::steps, "0").find("--steps: got '0'") == 0);
  CHECK(with(&Arguments::guidance, "nan").find("--guidance: got 'nan'") == 0);
  CHECK(with(&Arguments::dtype, "int8").find("--dtype: got 'int8'") == 0);
  CHECK(with(&Arguments::goal, "fun").find("--goal: got 'fun'") == 0);
  CHECK(with(&Arguments::memory, "12").find("--memory: got '12'") == 0);
  CHECK(with(&Arguments::gpus_per_host, "0").find("--gpus-per-host: got '0'") == 0);
  CHECK(with(&Arguments::memory, "4GiB").find("nothing fits 1 GPU with 4.0 GiB each. The least that a GPU needs is ") ==
        0);
}

}  // namespace latentd::plan
