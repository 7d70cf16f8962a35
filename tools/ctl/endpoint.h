#pragma once

#include <string_view>

#include "runtime/base/status.h"

namespace latentd::ctl {

// INVALID_ARGUMENT unless it is HOST:PORT: a name, an IPv4 address or an IPv6 address in brackets, and 1 to 65535.
Status checkEndpoint(std::string_view endpoint);

}  // namespace latentd::ctl
