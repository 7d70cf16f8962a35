#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace latentd::stages {

// Steps on bytes that should be UTF-8 but went through a charset.

// Byte A0 of a sequence often became a plain space on the way: puts it back where the sequence is then valid and its
// character is a usual one. "Ã la" becomes "à la", with its space.
std::string restoreNoBreakSpaces(std::string bytes);

// Sequences in which bytes were lost (0x1A, in places "?") become U+FFFD; so does a lost byte alone.
std::string replaceLostSequences(std::string_view bytes);

// UTF-8, and the two variants of it that Java and old databases write: C0 80 for NUL, and six bytes (two surrogates)
// for a character above U+FFFF.
std::optional<std::u32string> decodeUtf8Variants(std::string_view bytes);

}  // namespace latentd::stages
