#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "channel/backend.h"

namespace latentd::channel {

// Pools in memory that the host copies: what shm and the fake share. There is nothing to wait for: a copy is done when
// the call returns, so ready and completion events are no-ops. `keep` is what holds the memory (owners: the pool, and
// handles on their way out).
std::unique_ptr<ExportedPool> makeHostPool(std::span<std::byte> memory, const PoolLayout& layout, Handle handle);
std::shared_ptr<ImportedPool> importHostPool(std::span<const std::byte> memory, const PoolLayout& layout,
                                             std::shared_ptr<const void> keep);

// What an import of host memory has to say: nothing, for there are no events. INVALID_ARGUMENT for anything else.
inline constexpr std::string_view kHostAttachment = "host";
Status checkHostAttachment(const std::string& attachment);

}  // namespace latentd::channel
