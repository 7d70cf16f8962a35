#include "tests/mesh/group_operations.h"
#include "tests/mesh/ranks.h"
#include "tests/support/catch.h"

namespace latentd::mesh {

using testing::Ranks;

TEST_CASE("process group: every operation over NCCL, one GPU a rank", "[mesh][nccl]") {
  const bool verify = GENERATE(false, true);
  Ranks(testing::kEveryOperation,
        {.degrees = {.tp = 2}, .device = at::kCUDA, .backend = CommunicationBackend::kNccl, .verify = verify})
      .requireSuccess();
}

}  // namespace latentd::mesh
