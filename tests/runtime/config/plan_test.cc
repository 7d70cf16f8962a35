#include "runtime/config/plan.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/config/memory_estimate.h"
#include "tests/runtime/config/topology_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::config {

TEST_CASE("plan: groups, threads, edges and reasons are told", "[config][plan]") {
  const std::string yaml = with(kThreeGroups, "noop.middle",
                                "noop.middle\n    devices: [cpu, cpu]\n    parallel: {ulysses: 2}\n    threads: 1\n"
                                "    memory_max: 2GiB\n    options: {depth: 3}");
  const StatusOr<Topology> topology = parse(yaml);
  REQUIRE(topology.ok());
  Findings findings = findingsFor(*topology);
  findings.weight_bytes[1] = 3 << 20;
  findings.frame_step = 4;
  findings.defaults.frames = 17;
  findings.notes = {"jobs must say steps"};
  CHECK(planText(*topology, findings, namedPlaces) == R"(t.yaml
  API 127.0.0.1:0, HTTP 127.0.0.1:7412
  runtime directory in /tmp
  results in the runtime directory, at most 1GiB, kept 1h
groups, in the order in which a job runs them:
  text: noop.source.encode
    1 rank on cpu, 2 threads each, float32
    no model directory
    memory limit none
  denoise: noop.middle.denoise
    2 ranks on cpu, cpu, 1 thread each, float32
    ulysses 2 over gloo: its ranks are on the CPU
    heads scattered over shm: its ranks are on the CPU
      rank 0 on cpu: place 0
      rank 1 on cpu: place 1
    no model directory
    memory limit 2GiB
    option depth: 3
  decode: noop.sink.decode
    1 rank on cpu, 2 threads each, float32
    no model directory
    memory limit none
edges:
  text.encode->denoise.denoise
    transport shm: both groups are on the CPU of this host
    producer publishes whole, consumer reads whole
    2 slots for each of at most 8 profiles, unpooled at most 256MiB
  denoise.denoise->decode.decode
    transport shm: both groups are on the CPU of this host
    producer publishes whole, consumer reads whole
    2 slots for each of at most 8 profiles, unpooled at most 256MiB
memory: 1.2 GiB in all: 6.0 MiB of weights, 300.0 MiB for each of 4 worker processes
  pools grow at first use of a profile to slots x its bytes
jobs:
  frames 1 + a multiple of 4, at most 1025; sides multiples of 1, at most 2088960 pixels
  steps at most 1000, guidance at most 100, fps at most 240, prompts at most 16384 bytes
  defaults: frames 17, size none, steps none, guidance none, fps none, flow_shift none
  queue of 64, aging 30s; 2 commands in flight for each group; 1000 finished jobs kept for 1d
deadlines:
  load 2m
  warm_up 1m
  job 1h
  stall 1m
  heartbeat 1s
  heartbeat_miss 5s
  shutdown_grace 10s
  channel_progress 30s
  collective 30s
  encode 2m
restarts: after 200ms to 30s, given up after 10 failed starts in a row
traces: at most 2000 spans of a command on a rank, 64MiB of all jobs
note: jobs must say steps
)");
}

TEST_CASE("plan: the JSON form holds the same", "[config][plan]") {
  const StatusOr<Topology> topology =
      parse(with(kThreeGroups, "to: denoise", "consumer_shard_dim: 2\n    to: denoise"));
  REQUIRE(topology.ok());
  const nlohmann::json plan = nlohmann::json::parse(planJson(*topology, findingsFor(*topology)));
  CHECK(plan["sink"] == "decode");
  REQUIRE(plan["groups"].size() == 3);
  CHECK(plan["groups"][1]["name"] == "denoise");
  CHECK(plan["groups"][1]["threads"] == 2);
  CHECK(plan["groups"][1]["devices"] == nlohmann::json::array({"cpu"}));
  CHECK(plan["groups"][1]["memory_bytes_max"].is_null());
  CHECK(plan["groups"][1]["communication"].is_null());  // there is nobody to talk to
  CHECK(plan["groups"][1]["ulysses_transport"].is_null());
  CHECK(plan["limits"]["steps_max"] == 1000);
  CHECK(plan["deadlines_ms"]["job"].is_number());
  CHECK(plan["spool"]["retention_ms"] == 3'600'000);
  CHECK(plan["trace"]["spans_max"].is_number());
  CHECK(plan["trace"]["bytes_max"] == 64 << 20);
  CHECK(plan["defaults"]["frames"].is_null());
  REQUIRE(plan["edges"].size() == 2);
  CHECK(plan["edges"][0]["transport"] == "shm");
  CHECK(plan["edges"][0]["consumer_shard_dim"] == 2);
  CHECK(plan["edges"][0]["producer_shard_dim"].is_null());
}

TEST_CASE("plan: how tokens cross an edge is told once the stages said it", "[config][plan]") {
  StatusOr<Topology> topology = parse(kThreeGroups);
  REQUIRE(topology.ok());
  Findings findings = findingsFor(*topology);
  settle(findings, *topology);
  CHECK(planText(*topology, findings, namedPlaces).find("token layout") == std::string::npos);
  findings.token_cuts[1] = {TokenCut::kTokens, TokenCut::kRows};
  settle(findings, *topology);
  CHECK(topology->edges[0].tokens == TokenCuts{});
  CHECK(planText(*topology, findings, namedPlaces)
            .find("in token layout: producer publishes by tokens, consumer reads by rows") != std::string::npos);
  const nlohmann::json plan = nlohmann::json::parse(planJson(*topology, findings));
  CHECK(plan["edges"][0]["producer_tokens"] == "none");
  CHECK(plan["edges"][1]["producer_tokens"] == "tokens");
  CHECK(plan["edges"][1]["consumer_tokens"] == "rows");
  findings.token_cuts[1] = {TokenCut::kTokens, TokenCut::kNone};
  settle(findings, *topology);
  CHECK(planText(*topology, findings, namedPlaces)
            .find("consumer reads whole\n    in token layout: producer publishes by tokens, "
                  "consumer reads whole") != std::string::npos);
}

TEST_CASE("plan: weights are the sizes of the stage's own files", "[config][plan]") {
  const latentd::testing::TempDir folder;
  const std::filesystem::path dir = folder.path();
  const auto write = [&](const std::filesystem::path& file, size_t bytes) {
    std::filesystem::create_directories((dir / file).parent_path());
    std::ofstream(dir / file) << std::string(bytes, 'w');
  };
  write("text_encoder/model.safetensors", 1000);
  write("transformer/a-00001-of-00002.safetensors", 2000);
  write("transformer/a-00002-of-00002.safetensors", 300);
  write("transformer/config.json", 50);
  write("vae/b.safetensors", 70);
  GroupSpec group;
  group.model_dir = dir.string();
  group.stage = "wan.denoiser";
  CHECK(estimateMemory(group).weight_bytes == 2300);
  group.stage = "wan.text_encoder";
  CHECK(estimateMemory(group).weight_bytes == 1000);
  group.stage = "vae_decoder";
  CHECK(estimateMemory(group).weight_bytes == 70);
  group.stage = "module";
  CHECK(estimateMemory(group).weight_bytes == 3370);
  CHECK(estimateMemory(group).folders.empty());
  group.model_dir = (dir / "gone").string();
  CHECK(estimateMemory(group).weight_bytes == 0);
}

}  // namespace latentd::config
