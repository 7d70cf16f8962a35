#pragma once

#include <memory>
#include <string>
#include <vector>

#include "channel/backend.h"

// The parts of a backend that every same-host transport shares, whatever its pools are made of.
namespace latentd::channel {

// Connections over SOCK_SEQPACKET Unix sockets, control blocks in sealed memfds.
class UnixBackend : public Backend {
 public:
  StatusOr<std::unique_ptr<Listener>> listen(const std::string& address, uint32_t connections) override;
  StatusOr<std::unique_ptr<Link>> connect(const std::string& address) override;
  StatusOr<std::unique_ptr<ControlMemory>> createControl(const std::string& name, uint64_t bytes) override;
  StatusOr<std::unique_ptr<ControlMemory>> importControl(const std::string& handle, std::vector<UniqueFd> fds,
                                                         uint64_t bytes) override;
};

// The one descriptor that a handle of shared memory carries.
StatusOr<UniqueFd> takeOnly(std::vector<UniqueFd> fds);

}  // namespace latentd::channel
