#include "tests/channel/channel_contract.h"

#include "tests/support/catch.h"

namespace latentd::channel::testing {

void runContract(const ContractBackend& backend) {
  for (const auto& suite : {transferContract(), slotContract(), reshardContract(), endContract()}) {
    for (const ContractCase& contract : suite) {
      if (contract.borrows && !backend.lends) continue;
      DYNAMIC_SECTION(backend.name << ": " << contract.name) { contract.run(backend); }
    }
  }
}

}  // namespace latentd::channel::testing
