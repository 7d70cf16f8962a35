#include "tests/stages/cuda_device.h"

#include "tests/support/catch.h"

namespace latentd::stages::testing {

bool hasCuda() {
  if (c10::cuda::device_count() > 0) return true;
  WARN("skipped: this process sees no CUDA device");
  return false;
}

}  // namespace latentd::stages::testing
