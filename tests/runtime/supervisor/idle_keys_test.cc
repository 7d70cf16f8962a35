#include "runtime/supervisor/idle_keys.h"

#include <algorithm>

#include "tests/runtime/config/topology_fixture.h"
#include "tests/support/catch.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;

// As stages tell them.
wire::PreflightResult preflightOf(const config::Topology& topology) {
  wire::PreflightResult result;
  for (size_t entry = 0; entry < topology.stages.size(); ++entry) {
    wire::GroupFindings& found = *result.add_groups();
    const auto add = [&](const char* name, const char* default_value) -> wire::StageOption& {
      wire::StageOption& option = *found.add_options();
      option.set_name(name);
      option.set_default_value(default_value);
      return option;
    };
    add("ring_attention", "exchange").add_matters_with("parallel.ring");
    wire::StageOption& latents = add("latents", "tokens");
    latents.add_matters_with("parallel.ring");
    latents.add_matters_with("parallel.ulysses");
    wire::StageOption& batching = add("guidance_batching", "auto");
    batching.add_idle_with("parallel.cfg");
    batching.add_idle_with("parallel.pp");
    add("tile_height", "0");
    add("tile_overlap", "64").add_matters_with("options.tile_height");
    add("bytes", "1").add_matters_with("method.source");
    add("steps", "1");
  }
  return result;
}

JobLimits limitsOf(const config::Topology& topology) {
  JobLimits limits;
  limits.frames_max = std::min(topology.limits.frames_max, 4093U);
  limits.prompt_bytes_max = std::min(topology.limits.prompt_bytes_max, 16384U);
  if (topology.defaults.guidance) limits.defaults.set_guidance_scale(*topology.defaults.guidance);
  return limits;
}

std::vector<std::string> notesOf(const std::string& yaml) {
  const auto topology = config::parse(yaml);
  REQUIRE(topology.status().ToString() == "OK");
  return idleKeys(*topology, preflightOf(*topology), limitsOf(*topology));
}

// The group in the middle with more keys, from line 7 on.
std::string middle(const std::string& keys) {
  return config::with(config::kThreeGroups, "stage: noop.middle\n", "stage: noop.middle\n" + keys);
}
std::string ranks(const std::string& parallel, const std::string& options) {
  return middle("    devices: [cpu, cpu]\n    parallel: {" + parallel + "}\n    options: {" + options + "}\n");
}

using Notes = std::vector<std::string>;

// Every group with a key.
std::string everywhere(const std::string& key) {
  std::string yaml = config::kThreeGroups;
  for (const char* stage : {"noop.source", "noop.middle", "noop.sink"})
    yaml = config::with(yaml, stage, std::string(stage) + "\n    " + key);
  return yaml;
}

}  // namespace

TEST_CASE("idle keys: what a file does not say is not noted", "[supervisor]") {
  CHECK(notesOf(config::kThreeGroups).empty());
  CHECK(notesOf(ranks("ring: 2", "steps: 3")).empty());
}

TEST_CASE("idle keys: a key with its default is as good as none", "[supervisor]") {
  CHECK(notesOf(ranks("ulysses: 2", "ring_attention: exchange")).empty());
  CHECK(notesOf(middle("    communication: auto\n")).empty());
  CHECK(notesOf(config::kThreeGroups + "deadlines: {collective: 30s}\ntrace: {spans_max: 0, bytes_max: 64MiB}\n")
            .empty());
  CHECK(notesOf(config::kThreeGroups + "limits: {frames_max: 1025, prompt_bytes_max: 16384}\n").empty());
}

TEST_CASE("idle keys: an option without what it is about is noted with its line and what it takes", "[supervisor]") {
  const auto note = [](const std::string& option, const std::string& why) {
    return Notes{"t.yaml:9: groups[1].options." + option + ": has no effect " + why};
  };
  CHECK(notesOf(ranks("ulysses: 2", "ring_attention: all_gather")) ==
        note("ring_attention", "without parallel.ring above 1"));
  CHECK(notesOf(ranks("ring: 2", "ring_attention: all_gather")).empty());
  CHECK(notesOf(ranks("cfg: 2", "latents: whole")) ==
        note("latents", "without parallel.ring above 1 or parallel.ulysses above 1"));
  CHECK(notesOf(ranks("ulysses: 2", "latents: whole")).empty());
  CHECK(notesOf(ranks("pp: 2", "guidance_batching: separate")) ==
        note("guidance_batching", "with parallel.pp above 1"));
  CHECK(notesOf(ranks("tp: 2", "guidance_batching: separate")).empty());
  CHECK(notesOf(ranks("spatial: 2", "tile_overlap: 32")) == note("tile_overlap", "without options.tile_height"));
  // Its default is as good as nothing.
  CHECK(notesOf(ranks("spatial: 2", "tile_overlap: 32, tile_height: 0")) ==
        note("tile_overlap", "without options.tile_height"));
  CHECK(notesOf(ranks("spatial: 2", "tile_overlap: 32, tile_height: 256")).empty());
  CHECK(notesOf(ranks("tp: 2", "bytes: 7")) == note("bytes", "without method source"));
}

TEST_CASE("idle keys: what takes several ranks is noted where there is one", "[supervisor]") {
  CHECK(notesOf(middle("    communication: gloo\n")) ==
        Notes{"t.yaml:7: groups[1].communication: has no effect on a group of one rank, which has nobody to talk to"});
  CHECK(notesOf(middle("    devices: [cpu, cpu]\n    parallel: {dp: 2}\n    communication: gloo\n")) ==
        Notes{"t.yaml:9: groups[1].communication: has no effect on replicas of one rank, which do not talk to each "
              "other"});
  CHECK(notesOf(middle("    devices: [cpu, cpu]\n    parallel: {tp: 2}\n    communication: gloo\n")).empty());
  const std::string deadline = "deadlines: {collective: 10s}\n";
  CHECK(notesOf(config::kThreeGroups + deadline) ==
        Notes{"t.yaml:14: deadlines.collective: has no effect where no group has several ranks"});
  CHECK(notesOf(ranks("tp: 2", "steps: 3") + deadline).empty());
  const auto sharded = [](const std::string& yaml) {
    return notesOf(config::with(yaml, "to: denoise.denoise", "to: denoise.denoise\n    consumer_shard_dim: 0"));
  };
  CHECK(sharded(config::kThreeGroups) ==
        Notes{"t.yaml:12: edges[0].consumer_shard_dim: has no effect on a consumer of one rank, which reads all"});
  CHECK(sharded(ranks("tp: 2", "steps: 3")).empty());
  CHECK(notesOf(config::with(config::kThreeGroups, "to: denoise.denoise",
                             "to: denoise.denoise\n    producer_shard_dim: 0")) ==
        Notes{"t.yaml:12: edges[0].producer_shard_dim: has no effect on a producer of one rank, which publishes all"});
}

TEST_CASE("idle keys: a ulysses transport that is possible and unused is noted, on the CPU as on GPUs",
          "[supervisor]") {
  const std::pair<const char*, const char*> cases[] = {{"cpu", "shm"}, {"'cuda:0'", "cuda_ipc"}};
  for (const auto& [device, direct] : cases) {
    INFO(device);
    const std::string one = device;
    const auto notes = [&](const std::string& devices, const std::string& parallel, const char* transport) {
      return notesOf(middle("    devices: [" + devices + "]\n    parallel: {" + parallel +
                            "}\n    ulysses_transport: " + transport + "\n"));
    };
    for (const char* transport : {direct, "c10d"}) {
      const Notes idle{"t.yaml:9: groups[1].ulysses_transport: has no effect without parallel.ulysses above 1"};
      CHECK(notes(one, "", transport) == idle);
      CHECK(notes(one + ", " + one, "cfg: 2", transport) == idle);
      CHECK(notes(one + ", " + one, "dp: 2", transport) == idle);
      CHECK(notes(one + ", " + one, "ulysses: 2", transport).empty());
    }
    CHECK(notes(one, "", "auto").empty());
  }
}

TEST_CASE("idle keys: what another key or the model makes idle is noted", "[supervisor]") {
  CHECK(notesOf(config::kThreeGroups + "trace: {spans_max: 0, bytes_max: 1MiB}\n") ==
        Notes{"t.yaml:14: trace.bytes_max: has no effect with trace.spans_max 0, which keeps no traces"});
  CHECK(notesOf(config::kThreeGroups + "trace: {bytes_max: 1MiB}\n").empty());
  CHECK(notesOf(config::kThreeGroups + "limits: {frames_max: 5000}\n") ==
        Notes{"t.yaml:14: limits.frames_max: has no effect above what the model takes, 4093"});
  CHECK(notesOf(config::kThreeGroups + "limits: {frames_max: 81, prompt_bytes_max: 100}\n").empty());
  CHECK(notesOf(config::kThreeGroups + "limits: {prompt_bytes_max: 65536}\n") ==
        Notes{"t.yaml:14: limits.prompt_bytes_max: has no effect above what the model takes, 16384"});
  CHECK(notesOf(ranks("cfg: 2", "steps: 3") + "limits: {guidance_max: 1}\n") ==
        Notes{"t.yaml:8: groups[1].parallel.cfg: has no effect with limits.guidance_max at most 1: jobs have no second "
              "pass"});
  CHECK(notesOf(middle("    model: /tmp\n")) ==
        Notes{"t.yaml:7: groups[1].model: has no effect on a stage that reads no weights"});
  CHECK(notesOf(config::kThreeGroups + "model: /tmp\n") ==
        Notes{"t.yaml:14: model: has no effect on stages that read no weights"});
  CHECK(notesOf(everywhere("model: /tmp") + "model: /tmp\n").front() ==
        "t.yaml:17: model: has no effect where every group has a model of its own");
  CHECK(notesOf(everywhere("stall: 10s") + "deadlines: {stall: 20s}\n") ==
        Notes{"t.yaml:17: deadlines.stall: has no effect where every group has a stall of its own"});
  CHECK(notesOf(everywhere("stall: 10s")).empty());
  CHECK(notesOf(middle("    stall: 10s\n") + "deadlines: {stall: 20s}\n").empty());
}

TEST_CASE("idle keys: what takes guidance is noted where jobs have none by default", "[supervisor]") {
  const std::string plain = "defaults: {guidance: 1}\n";
  CHECK(
      notesOf(ranks("cfg: 2", "steps: 3") + plain) ==
      Notes{"t.yaml:8: groups[1].parallel.cfg: has no effect on jobs that leave guidance at its default, 1: they have "
            "no second pass"});
  CHECK(notesOf(ranks("cfg: 2", "steps: 3") + "defaults: {guidance: 1.5}\n").empty());
  CHECK(notesOf(ranks("tp: 2", "steps: 3") + plain).empty());
  CHECK(notesOf(config::kThreeGroups + "defaults: {guidance: 0.5, negative_prompt: blurred}\n") ==
        Notes{"t.yaml:14: defaults.negative_prompt: has no effect on jobs that leave guidance at its default, 0.5"});
  CHECK(notesOf(config::kThreeGroups + "defaults: {guidance: 0.5, negative_prompt: ''}\n").empty());
  CHECK(notesOf(config::kThreeGroups + "defaults: {guidance: 2, negative_prompt: blurred}\n").empty());
  CHECK(notesOf(config::kThreeGroups + "defaults: {negative_prompt: blurred}\n").empty());
}

}  // namespace latentd::supervisor
