#include <filesystem>

#include "runtime/config/plan.h"
#include "tests/runtime/config/topology_fixture.h"
#include "tests/support/catch.h"

namespace latentd::config {

TEST_CASE("configs: every shipped topology loads", "[config][configs]") {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml") continue;
    const StatusOr<Topology> topology = loadTopology(entry.path().string(), testSurroundings());
    INFO(entry.path().string() << ": " << messageOf(topology.status()));
    REQUIRE(topology.ok());
    CHECK(!planText(*topology, findingsFor(*topology), namedPlaces).empty());
    ++files;
  }
  CHECK(files > 0);
}

}  // namespace latentd::config
