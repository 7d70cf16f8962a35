#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace latentd {

// Offset of the first byte that is not UTF-8 (overlong forms and surrogates included); nothing if all is.
std::optional<size_t> firstInvalidUtf8(std::string_view text);

}  // namespace latentd
