#pragma once

#include <memory>
#include <string_view>

#include "channel/channel.h"

namespace latentd::channel {

// The backend of a transport: "shm" (sealed memfd pools and a Unix socket between processes) or "fake" (heap memory and
// queues inside this process; both endpoints must share the one backend object). INVALID_ARGUMENT names the known ones.
StatusOr<std::shared_ptr<Backend>> makeBackend(std::string_view transport);

}  // namespace latentd::channel
