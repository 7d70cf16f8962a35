#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/topology.h"
#include "runtime/config/transport.h"

namespace latentd::config {

// What the worker program and the loaded model's files say of a topology, without loading it (runtime/supervisor's
// preflight): with it, the plan holds what jobs will meet.
struct Findings {
  std::vector<uint64_t> weight_bytes;  // by group index: of each rank, in memory, in the group's dtype
  uint64_t process_bytes = 0;          // resident in a worker that has loaded nothing
  uint32_t frame_step = 1;             // frames = 1 + k * frame_step
  uint32_t size_multiple = 1;          // of width and height, pixels
  Limits limits;                       // the topology's, where the model does not allow less
  JobDefaults defaults;                // the topology's, else the model's
  DeviceSurvey devices;
  std::vector<TokenCuts> token_cuts;  // by link
  std::vector<std::string> notes;     // what is no error and will surprise
};

// Fills in what the topology's edges have from them: transports, and how tokens are cut.
void settle(const Findings& findings, Topology& topology);

}  // namespace latentd::config
