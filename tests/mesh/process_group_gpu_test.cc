#include "tests/mesh/group_operations.h"
#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh {

using testing::Ranks;

TEST_CASE("process group: every operation of ranks that share a GPU, staged through the host", "[mesh][cuda]") {
  const uint32_t ranks = GENERATE(2u, 4u);
  const bool verify = GENERATE(false, true);
  Ranks(testing::kEveryOperation, {.degrees = {.tp = ranks}, .device = at::Device(at::kCUDA, 0), .verify = verify})
      .requireSuccess();
}

}  // namespace latentd::mesh
