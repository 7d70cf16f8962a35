#include "tools/check_plan.h"

#include <nlohmann/json.hpp>

#include "tests/runtime/config/topology_fixture.h"
#include "tests/support/catch.h"

namespace latentd {

TEST_CASE("check: the ranks of a group are listed with their place in its mesh", "[tools]") {
  const std::string yaml = config::with(config::kThreeGroups, "stage: noop.middle",
                                        "stage: noop.middle\n    devices: [cpu, cpu, cpu, cpu]\n"
                                        "    parallel: {cfg: 2, ulysses: 2}");
  const auto topology = config::parse(yaml);
  REQUIRE(topology.status().ToString() == "OK");
  const config::Findings findings = config::findingsFor(*topology);

  const std::string text = checkText(*topology, findings);
  CHECK(text.find("    cfg 2 x ulysses 2 over gloo: its ranks are on the CPU\n"
                  "    heads scattered over shm: its ranks are on the CPU\n"
                  "      rank 0 on cpu: cfg 0, ulysses 0\n"
                  "      rank 1 on cpu: cfg 0, ulysses 1\n"
                  "      rank 2 on cpu: cfg 1, ulysses 0\n"
                  "      rank 3 on cpu: cfg 1, ulysses 1\n") != std::string::npos);

  const auto plan = nlohmann::json::parse(checkJson(*topology, findings));
  CHECK(plan["meshes"].size() == 1);
  CHECK(plan["meshes"]["denoise"].size() == 4);
  CHECK(plan["meshes"]["denoise"][2]["mesh"]["cfg"] == 1);
  CHECK(plan["meshes"]["denoise"][2]["mesh"]["ulysses"] == 0);
  CHECK(plan["groups"].is_array());
  CHECK(plan["groups"][1]["ulysses_transport"] == "shm");
  CHECK(plan["groups"][1]["ulysses_transport_reason"] == "its ranks are on the CPU");
}

}  // namespace latentd
