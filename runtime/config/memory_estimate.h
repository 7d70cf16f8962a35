#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/topology.h"

namespace latentd::config {

// What a group will need, as far as the disk tells before anything is loaded.
struct MemoryEstimate {
  uint64_t weight_bytes = 0;         // of the stage's safetensors files, each rank
  std::vector<std::string> folders;  // of the model directory that were counted; empty: all of it
};

// Sizes only: no file is opened. A folder that cannot be read counts as empty; loading names the problem.
MemoryEstimate estimateMemory(const GroupSpec& group);

}  // namespace latentd::config
