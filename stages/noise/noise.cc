#include "stages/noise/noise.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

namespace latentd::stages {

at::Tensor initialLatents(uint64_t seed, at::IntArrayRef shape) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kFloat));
}

}  // namespace latentd::stages
