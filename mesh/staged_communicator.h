#pragma once

#include <memory>

#include "mesh/communicator.h"

namespace latentd::mesh {

// Tensors of a CUDA device over a communicator of CPU tensors, through pinned host memory: what ranks that share a GPU
// use. A copy to the host is waited for before its operation starts, a copy from it belongs to the current stream of
// whoever waits.
std::unique_ptr<Communicator> stageThroughHost(std::unique_ptr<Communicator> host, at::Device device);

}  // namespace latentd::mesh
