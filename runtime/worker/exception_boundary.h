#pragma once

#include <functional>

#include "runtime/base/status.h"

namespace latentd::worker {

struct GuardedResult {
  Status status;
  // False when the process must not run another job: the device or the memory is not in a known state.
  bool clean = true;
  // It met the failure or the end of another rank of the group, or waited for one in vain. Not clean.
  bool of_peer = false;
};

// Runs stage code. This is the one place where torch's exceptions end: memory that ran out becomes RESOURCE_EXHAUSTED
// with the sizes, an error of a device what runtime/cuda/cuda_status makes of it (DATA_LOSS where the context is lost),
// one of communication its status, any other exception INTERNAL with its text.
GuardedResult runGuarded(const std::function<Status()>& work);

}  // namespace latentd::worker
