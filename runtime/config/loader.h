#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/status.h"
#include "runtime/config/topology.h"

namespace latentd::config {

// What the file does not say but its defaults depend on.
struct Surroundings {
  std::string runtime_dir = "/tmp";  // default of the key runtime_dir; the main knows $XDG_RUNTIME_DIR
  uint32_t cores = 1;                // of this machine, for the default of groups[].threads
};

// Reads, completes and checks one topology file. INVALID_ARGUMENT for what the file says wrong: "FILE:LINE: KEY: ..."
// with the value and valid ones; UNIMPLEMENTED for an edge that no transport of this build serves; errno's codes when
// it cannot be read. Looks at the disk for the existence of model folders, and changes nothing.
StatusOr<Topology> loadTopology(const std::string& file, const Surroundings& surroundings);

// The same for text already in memory; `file` is for messages and for relative paths.
StatusOr<Topology> parseTopology(const std::string& yaml, const std::string& file, const Surroundings& surroundings);

}  // namespace latentd::config
