#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "mesh/communicator.h"

namespace latentd::mesh {

// Where the communicators of one mesh come from: what its groups share.
// Owner: a Mesh; outlives its communicators. Thread: one. Failure: connect() throws what its library throws.
class CommunicatorSource {
 public:
  virtual ~CommunicatorSource() = default;
  // Meets the other members; every one of them gives the same name and size. Bounded by `timeout`.
  virtual std::unique_ptr<Communicator> connect(const std::string& name, int rank, int size,
                                                std::chrono::milliseconds timeout) = 0;
};

// One socket that listens on 127.0.0.1, and one thread for all connections.
std::unique_ptr<CommunicatorSource> makeGlooSource(const std::string& rendezvous_file);
// Of one GPU a rank. What lasts longer than `operation_timeout` on the device ends the process.
std::unique_ptr<CommunicatorSource> makeNcclSource(const std::string& rendezvous_file, at::Device device,
                                                   std::chrono::milliseconds operation_timeout);

}  // namespace latentd::mesh
