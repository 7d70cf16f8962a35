#pragma once

#include <string>

#include "tests/support/catch.h"

namespace latentd::testing {

// Matches texts with `part` in them. Catch2 2 and 3 have different names for it.
#if __has_include(<catch2/catch_all.hpp>)
inline auto containsText(const std::string& part) { return Catch::Matchers::ContainsSubstring(part); }
#else
inline auto containsText(const std::string& part) { return Catch::Matchers::Contains(part); }
#endif

}  // namespace latentd::testing
