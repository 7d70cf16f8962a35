#pragma once

#include <cstdint>
#include <string>

namespace latentd::worker {

// Resident memory of this process; 0 if the kernel does not tell.
uint64_t residentBytes();
// "the process holds 812 MiB; its limit (memory_max) is 2048 MiB", for messages about memory that ran out.
std::string describeMemory();
// Gives freed memory back to the kernel, then tries to take `bytes`: false if the process could not run a job.
bool releaseAndProbe(uint64_t bytes);

}  // namespace latentd::worker
