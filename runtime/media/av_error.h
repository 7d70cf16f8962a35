#pragma once

#include <string_view>

#include "runtime/base/status.h"

namespace latentd::media {

// Of a libav error code: an errno inside it decides the code as errnoStatus() has it, anything else is INTERNAL.
Status avStatus(int error, std::string_view what);

}  // namespace latentd::media
