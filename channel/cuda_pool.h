#pragma once

#include <memory>
#include <string>

#include "channel/backend.h"
#include "channel/cuda_options.h"

// The pools of the cuda_ipc transport: a plain device allocation that is exported once, and for each slot a ready event
// of the producer, several if the slot is large and filled in parts, and a completion event of each consumer rank.
// Exporter and importer are different processes.
namespace latentd::channel {

StatusOr<std::unique_ptr<ExportedPool>> makeCudaPool(const PoolLayout& layout, const CudaOptions& options);

// INVALID_ARGUMENT for handles of another size, UNAVAILABLE if the exporter is gone, RESOURCE_EXHAUSTED if it cannot be
// mapped.
StatusOr<std::shared_ptr<ImportedPool>> importCudaPool(const std::string& handle, const PoolLayout& layout,
                                                       const CudaOptions& options);

}  // namespace latentd::channel
