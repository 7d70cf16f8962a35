#pragma once

#include <cstdint>
#include <string>

namespace latentd::worker {

// Resident memory of this process; 0 if the kernel does not tell.
uint64_t residentBytes();
// Whether RLIMIT_DATA is set.
bool hasMemoryLimit();
// Private memory that this process may still map under RLIMIT_DATA; UINT64_MAX without a limit.
uint64_t mappableBytes();
// "the process holds 812 MiB; it has mapped 2040 MiB of private memory, touched or not, and its limit (memory_max) is
// 2048 MiB", for messages about memory that ran out.
std::string describeMemory();
// Gives freed memory back to the kernel, then tries to take `bytes`: false if the process could not run a job.
bool releaseAndProbe(uint64_t bytes);

}  // namespace latentd::worker
