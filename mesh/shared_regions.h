#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/process_group.h"
#include "runtime/base/shm_region.h"
#include "runtime/base/status.h"

// Memory that the ranks of a process group, on one host, write into each other's.
namespace latentd::mesh {

// Each rank makes a region of as many bytes and fills it before the others see it; result: by rank, this one's own
// among them. Regions have no name and go with the last process that maps them. The same failure on all ranks, of
// whichever could not make its own or map another's: nothing is left then. Throws CommunicationError.
StatusOr<std::vector<ShmRegion>> shareRegions(ProcessGroup& group, const std::string& name, uint64_t bytes,
                                              const std::function<void(const ShmRegion&)>& fill);

}  // namespace latentd::mesh
