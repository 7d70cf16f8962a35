#pragma once

#include <cstdint>
#include <string>

#include "mesh/device_mesh.h"

namespace latentd::plan {

// How a denoiser is spread over GPUs. `spatial` is the decoder's and stays 1 here. A value type.
struct Split {
  mesh::MeshDegrees degrees;
  bool ring_gathers = false;  // ring_attention: all_gather
  bool batched = true;        // guidance_batching: both branches of a rank in one pass
  bool direct_heads = false;  // ulysses_transport: cuda_ipc; else c10d

  // Of one replica.
  uint32_t ranks() const { return gpus() / degrees.dp; }
  uint32_t gpus() const { return degrees.product(); }
  uint32_t sequence() const { return degrees.ring * degrees.ulysses; }
};

// "cfg 2 x ulysses 4": the degrees above 1; "one rank" without any.
std::string toString(const Split& split);

}  // namespace latentd::plan
