#pragma once

#include <string_view>

namespace latentd {

// Of the release.
inline constexpr std::string_view kVersion = "0.1.0";
// Of the public API: the name of its protocol package.
inline constexpr std::string_view kApiVersion = "latentd.v1";

}  // namespace latentd
