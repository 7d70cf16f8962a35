#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace latentd::stages {

// Standard normal latents, float32 on the CPU: those of the reference's CPU generator with the same seed, whatever the
// device and the topology.
at::Tensor initialLatents(uint64_t seed, at::IntArrayRef shape);

}  // namespace latentd::stages
