#pragma once

#include <memory>
#include <string>
#include <vector>

#include "channel/backend.h"

// The parts of a backend that every same-host transport shares, whatever its pools are made of.
namespace latentd::channel {

StatusOr<std::unique_ptr<Listener>> listenUnix(const std::string& address, uint32_t connections);
StatusOr<std::unique_ptr<Link>> connectUnix(const std::string& address);

StatusOr<std::unique_ptr<ControlMemory>> createShmControl(const std::string& name, uint64_t bytes);
StatusOr<std::unique_ptr<ControlMemory>> importShmControl(std::vector<UniqueFd> fds, uint64_t bytes);

// The one descriptor that a handle of shared memory carries.
StatusOr<UniqueFd> takeOnly(std::vector<UniqueFd> fds);

}  // namespace latentd::channel
