#pragma once

#include <ATen/core/Tensor.h>

namespace latentd::stages {

// Copies between host and device that the host does not wait for. Both go through pinned memory, of which torch keeps a
// cache, and are part of the device's current stream.

// The tensor on `device`; itself if it is there.
at::Tensor toDevice(const at::Tensor& tensor, at::Device device);

// A device tensor in pinned host memory, which holds it once all that was submitted so far is complete (see
// StepPacer::submitted). A host tensor itself.
at::Tensor toPinnedHost(const at::Tensor& tensor);

}  // namespace latentd::stages
