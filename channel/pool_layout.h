#pragma once

#include "channel/backend.h"

namespace latentd::channel {

// INVALID_ARGUMENT unless the slots of a pool fit it.
Status checkSlotsFit(const PoolLayout& layout);

}  // namespace latentd::channel
