#pragma once

#include <c10/core/Device.h>

#include "mesh/process_group.h"

// What every process group does, whatever carries it.
namespace latentd::mesh::testing {

// On every rank of the group: every operation, of several types, with its results and bytes checked.
void everyOperation(ProcessGroup& group, at::Device device);

// The hidden test case that does so over the world.
inline constexpr const char* kEveryOperation = "rank that does every group operation";

}  // namespace latentd::mesh::testing
