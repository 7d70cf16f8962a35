#pragma once

#include <string_view>

#include <cuda_runtime_api.h>

#include "runtime/base/status.h"

namespace latentd::cuda {

// Status of a CUDA runtime call; `what` says what was tried, on which object. Memory allocation becomes
// RESOURCE_EXHAUSTED, a missing device or driver FAILED_PRECONDITION, a handle of a process that is gone UNAVAILABLE,
// what poisons the context DATA_LOSS (see isSticky), anything else INTERNAL. Also clears the thread's last error, so
// that one failed call is not reported again by the next library.
Status cudaStatus(cudaError_t error, std::string_view what);

// The context of this process is lost (an illegal access, a failed launch, an uncorrectable memory error): every later
// call fails too, and only a new process helps.
bool isSticky(cudaError_t error);

}  // namespace latentd::cuda

#define LATENTD_CUDA_RETURN_IF_ERROR(call, what)                                \
  do {                                                                          \
    if (const cudaError_t latentd_cuda = (call); latentd_cuda != cudaSuccess) { \
      return ::latentd::cuda::cudaStatus(latentd_cuda, what);                   \
    }                                                                           \
  } while (false)
