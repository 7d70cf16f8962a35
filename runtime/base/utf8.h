#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace latentd {

// Offset of the first byte that is not UTF-8 (overlong forms and surrogates included); nothing if all is.
std::optional<size_t> firstInvalidUtf8(std::string_view text);
// "is not UTF-8: byte 0xff at offset 3; send it as UTF-8", for a message that begins with the name of the text.
std::optional<std::string> describeInvalidUtf8(std::string_view text);

}  // namespace latentd
