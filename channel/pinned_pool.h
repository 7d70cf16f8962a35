#pragma once

#include <memory>
#include <string>

#include "channel/backend.h"
#include "channel/cuda_options.h"
#include "runtime/base/unique_fd.h"

// The device's end of a pool in host memory. Every fill, and every read's completion, is waited for by the host.
namespace latentd::channel {

StatusOr<std::unique_ptr<ExportedPool>> makePinnedPool(const std::string& name, const PoolLayout& layout,
                                                       const CudaOptions& options);
StatusOr<std::shared_ptr<ImportedPool>> importPinnedPool(UniqueFd fd, const PoolLayout& layout,
                                                         const CudaOptions& options);

}  // namespace latentd::channel
