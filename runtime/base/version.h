#pragma once

#include <string_view>

namespace latentd {

// Of the release; the API has a version of its own (latentd.v1).
inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace latentd
