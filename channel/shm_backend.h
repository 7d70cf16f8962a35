#pragma once

#include <memory>

#include "channel/backend.h"

namespace latentd::channel {

// Between processes of one host, in host memory: pools and control blocks are sealed memfds, messages and descriptors
// go over a SOCK_SEQPACKET Unix socket. Consumers map pools read only, whatever they try.
std::shared_ptr<Backend> makeShmBackend();

}  // namespace latentd::channel
