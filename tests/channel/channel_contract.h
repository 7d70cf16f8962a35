#pragma once

#include <string>
#include <vector>

#include "tests/channel/channel_rig.h"

namespace latentd::channel::testing {

// What every backend promises, written once. A backend joins with a test file of its own that calls runContract().
struct ContractCase {
  std::string name;
  void (*run)(const ContractBackend& backend);
  bool borrows = false;
};

std::vector<ContractCase> transferContract();  // what arrives is what was published
std::vector<ContractCase> slotContract();      // slots, acknowledgements, discards, bounds
std::vector<ContractCase> reshardContract();   // P ranks to C ranks
std::vector<ContractCase> endContract();       // handshakes, time-outs, cancelling, Retire

// Each case in a section of its own.
void runContract(const ContractBackend& backend);

}  // namespace latentd::channel::testing
