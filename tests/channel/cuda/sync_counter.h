#pragma once

#include <dlfcn.h>

#include <cstdint>

namespace latentd::channel::testing {

// Calls of this process that made the host wait for the device, of whatever library; -1 unless the process runs with
// libcount_synchronise.so preloaded.
inline int64_t synchroniseCalls() {
  using Count = int64_t (*)();
  const auto count = reinterpret_cast<Count>(::dlsym(RTLD_DEFAULT, "latentd_count_synchronise"));
  return count == nullptr ? -1 : count();
}

}  // namespace latentd::channel::testing
