#pragma once

namespace latentd {

inline constexpr const char* kVersion = "0.1.0";
inline constexpr const char* kApiVersion = "latentd.v1";

}  // namespace latentd
