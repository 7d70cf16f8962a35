#include "runtime/config/replicas.h"

#include <nlohmann/json.hpp>

#include "runtime/config/plan.h"
#include "tests/runtime/config/topology_fixture.h"
#include "tests/support/catch.h"

namespace latentd::config {
namespace {

// Three groups; `denoise` and `decode` with these keys in addition.
std::string withKeys(const std::string& denoise, const std::string& decode = "") {
  const std::string text = with(kThreeGroups, "noop.middle", "noop.middle\n    " + denoise);
  return decode.empty() ? text : with(text, "noop.sink", "noop.sink\n    " + decode);
}

std::vector<std::string> names(const std::vector<GroupSpec>& groups) {
  std::vector<std::string> all;
  for (const GroupSpec& group : groups)
    all.push_back(group.name);
  return all;
}

}  // namespace

TEST_CASE("replicas: a group with dp becomes that many groups with their own devices", "[config][replica]") {
  const StatusOr<Topology> topology =
      parse(withKeys("devices: [\"cuda:0\", \"cuda:1\", \"cuda:2\", \"cuda:3\"]\n    parallel: {dp: 2, ulysses: 2}\n   "
                     " dtype: bfloat16"));
  REQUIRE(topology.status().ToString() == "OK");
  CHECK(names(topology->groups) == std::vector<std::string>{"text", "denoise.0", "denoise.1", "decode"});
  const GroupSpec& second = topology->groups[2];
  CHECK(second.devices == std::vector<Device>{{Device::Kind::kCuda, 2}, {Device::Kind::kCuda, 3}});
  CHECK(second.parallel.dp == 1);
  CHECK(second.parallel.product() == 2);
  CHECK(second.method == "denoise");
  CHECK(second.dtype == DType::kBFloat16);
  CHECK(second.threads == topology->groups[1].threads);
  CHECK(second.place == 1);
  REQUIRE(topology->stages.size() == 3);
  CHECK(topology->stages[1].name == "denoise");
  CHECK(topology->stages[1].groups == std::vector<size_t>{1, 2});
  CHECK(topology->stages[2].groups == std::vector<size_t>{3});
  CHECK(topology->emitsFrames(3));
  CHECK_FALSE(topology->emitsFrames(2));
}

TEST_CASE("replicas: each pair has an edge of its own, and what has no replicas keeps its names", "[config][replica]") {
  const StatusOr<Topology> topology =
      parse(withKeys("devices: [cpu, cpu]\n    parallel: {dp: 2}", "devices: [cpu, cpu, cpu]\n    parallel: {dp: 3}"));
  REQUIRE(topology.status().ToString() == "OK");
  REQUIRE(topology->links.size() == 2);
  CHECK(topology->links[0].name == "text.encode->denoise.denoise");
  CHECK(topology->links[1].name == "denoise.denoise->decode.decode");
  CHECK(topology->links[1].first_edge == 2);
  REQUIRE(topology->edges.size() == 2 + 6);
  CHECK(topology->edges[1].name == "text.encode->denoise.1.denoise");
  CHECK(topology->edges[6].name == "denoise.1.denoise->decode.1.decode");
  for (size_t link = 0; link < topology->links.size(); ++link) {
    for (const size_t from : topology->stages[topology->links[link].from].groups) {
      for (const size_t to : topology->stages[topology->links[link].to].groups) {
        const EdgeSpec& edge = topology->edges.at(topology->edgeBetween(link, from, to));
        CHECK(edge.link == link);
        CHECK(edge.from == from);
        CHECK(edge.to == to);
        CHECK(edge.transport == Transport::kShm);
        CHECK_FALSE(edge.transport_reason.empty());
      }
    }
  }
  const StatusOr<Topology> plain = parse(withKeys("parallel: {dp: 1}"));
  REQUIRE(plain.ok());
  CHECK(names(plain->groups) == std::vector<std::string>{"text", "denoise", "decode"});
  CHECK(plain->edges[0].name == plain->links[0].name);
}

TEST_CASE("replicas: threads are shared out among all of them, and ranks of different ones do not talk",
          "[config][replica]") {
  const StatusOr<Topology> topology = parse(withKeys("devices: [cpu, cpu]\n    parallel: {dp: 2}"));
  REQUIRE(topology.ok());
  for (const GroupSpec& group : topology->groups)
    CHECK(group.threads == 2);  // 8 cores, 4 workers
  // Two replicas may share a GPU; the two ranks of one may not, with NCCL.
  CHECK(refusal(withKeys("devices: [\"cuda:0\", \"cuda:1\", \"cuda:0\", \"cuda:1\"]\n    parallel: {dp: 2, cfg: 2}\n"
                         "    communication: nccl")) == "OK");
  CHECK(refusal(withKeys("devices: [\"cuda:0\", \"cuda:1\", \"cuda:2\", \"cuda:2\"]\n    parallel: {dp: 2, cfg: 2}\n"
                         "    communication: nccl"))
            .find("t.yaml:9: groups[1].communication: ") == 0);
}

TEST_CASE("replicas: devices must make whole replicas, and pairs are bounded", "[config][replica]") {
  CHECK(refusal(withKeys("devices: [cpu, cpu, cpu]\n    parallel: {dp: 2}")) ==
        "t.yaml:8: groups[1].parallel: dp 2 makes 2 ranks, but devices lists 3; the two must be equal: list 2 devices, "
        "give dp: 3 (replicas), or change the degrees (latent-worker --describe has those of noop.middle)");
  CHECK(refusal(withKeys("parallel: {dp: 0}")).find("t.yaml:7: groups[1].parallel.dp: ") == 0);
  std::string many = "devices: [cpu";
  for (int device = 1; device < 64; ++device)
    many += ", cpu";
  many += "]\n    parallel: {dp: 64}";
  CHECK(refusal(withKeys(many)) == "OK");
  CHECK(refusal(withKeys(many, many)) ==
        "t.yaml:16: edges[1]: each of 64 replicas of denoise and each of 64 of decode have an edge of their own: with "
        "these the file makes 4160, at most 1024 are valid; lower parallel.dp of either");
}

TEST_CASE("replicas: of pairs that differ each kind is told once, with their names", "[config][replica][plan]") {
  StatusOr<Topology> topology = parse(withKeys("devices: [cpu, cpu, cpu, cpu]\n    parallel: {dp: 2, ulysses: 2}"));
  REQUIRE(topology.ok());
  topology->edges[1].transport_reason = "for a reason of its own";
  const std::string text = planText(*topology, findingsFor(*topology), namedPlaces);
  CHECK(text.find("  text.encode->denoise.0.denoise\n    transport shm: both") != std::string::npos);
  CHECK(text.find("  text.encode->denoise.1.denoise\n    transport shm: for a reason of its own\n") !=
        std::string::npos);
  CHECK(text.find("  denoise.denoise->decode.decode, 2 pairs of replicas\n") != std::string::npos);
  CHECK(text.find("    denoise.1: ulysses 2 over gloo: its ranks are on the CPU\n"
                  "    denoise.1: heads scattered over shm: its ranks are on the CPU\n"
                  "    ranks of each replica, devices in this order:\n"
                  "      rank 0: place 0\n      rank 1: place 1\n    no model directory\n") != std::string::npos);
}

TEST_CASE("replicas: the plan shows each of them with its devices", "[config][replica][plan]") {
  const StatusOr<Topology> topology =
      parse(withKeys("devices: [\"cuda:0\", \"cuda:1\"]\n    parallel: {dp: 2}\n    threads: 1"));
  REQUIRE(topology.ok());
  Findings findings = findingsFor(*topology);
  findings.weight_bytes = {0, 5 << 20, 5 << 20, 0};
  const std::string text = planText(*topology, findings, namedPlaces);
  CHECK(text.find("  denoise: noop.middle.denoise\n"
                  "    2 replicas; a job uses the one with the least to do\n"
                  "    denoise.0: 1 rank on cuda:0, 1 thread each, float32\n"
                  "    denoise.1: 1 rank on cuda:1, 1 thread each, float32\n"
                  "    no model directory\n") != std::string::npos);
  CHECK(text.find("\nedges:\n  text.encode->denoise.denoise, 2 pairs of replicas\n    transport pinned: ") !=
        std::string::npos);
  CHECK(text.find("text.encode->denoise.1.denoise") == std::string::npos);
  CHECK(text.find("memory: 1.2 GiB in all: 10.0 MiB of weights, 300.0 MiB for each of 4 worker processes") !=
        std::string::npos);
  const auto plan = nlohmann::json::parse(planJson(*topology, findings));
  REQUIRE(plan["groups"].size() == 4);
  CHECK(plan["groups"][2]["name"] == "denoise.1");
  CHECK(plan["groups"][2]["replica_of"] == "denoise");
  CHECK(plan["groups"][2]["devices"] == nlohmann::json::array({"cuda:1"}));
  CHECK(plan["groups"][0]["replica_of"].is_null());
  CHECK(plan["edges"].size() == 4);
  CHECK(plan["sink"] == "decode");
}

}  // namespace latentd::config
