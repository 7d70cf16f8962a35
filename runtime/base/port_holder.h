#pragma once

#include <cstdint>
#include <string>

namespace latentd {

// Who listens on a TCP port of this host, for the message of a bind that failed: "pid 123 (latentd --config x.yaml)".
// Another user's process is only known to exist. Empty when nobody listens any more. Thread: any.
std::string describePortHolder(uint16_t port);

}  // namespace latentd
