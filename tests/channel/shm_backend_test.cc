#include "channel/shm_backend.h"
#include "tests/channel/channel_contract.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {

TEST_CASE("channel: the contract holds over shared memory", "[channel][contract]") {
  const ContractBackend shm{"shm", makeShmBackend(), [](const TempDir& dir, uint32_t rank) {
                              return dir.file("p" + std::to_string(rank) + ".sock");
                            }};
  runContract(shm);
}

}  // namespace latentd::channel::testing
