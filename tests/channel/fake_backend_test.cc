#include "channel/fake_backend.h"
#include "tests/channel/channel_contract.h"
#include "tests/support/catch.h"

namespace latentd::channel::testing {

TEST_CASE("channel: the contract holds over the in-process backend", "[channel][contract]") {
  const ContractBackend fake{"fake", FakeBackend::make(),
                             [](const TempDir& dir, uint32_t rank) { return dir.file(std::to_string(rank)); }};
  runContract(fake);
}

}  // namespace latentd::channel::testing
