#pragma once

#include <memory>

#include "channel/backend.h"

namespace latentd::channel::testing {

// A backend whose pools are imported by other processes, so that the contract suite, which holds both ends of a channel
// in one process, runs unchanged on a transport whose exporter and importer must differ. Pools are
// made by `inner`. A child of this binary imports a pool with a CUDA IPC backend of its own, reads into device memory
// of its own, and mirrors what it read in shared memory, from where the test's process takes it. A pool is imported
// once per process: consumer ranks that import the same one get different children.
std::shared_ptr<Backend> importElsewhere(std::shared_ptr<Backend> inner);

}  // namespace latentd::channel::testing
