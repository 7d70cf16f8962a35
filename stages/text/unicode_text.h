#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace latentd::stages {

// Well-formed UTF-8 only: no overlong forms, no surrogates, nothing above U+10FFFF.
std::optional<std::u32string> decodeUtf8(std::string_view bytes);
// As decodeUtf8; the error is INVALID_ARGUMENT and names the first bad byte and its offset.
StatusOr<std::u32string> decodeUtf8OrExplain(std::string_view bytes);
// The characters must be code points other than surrogates.
std::string encodeUtf8(std::u32string_view text);

enum class NormalForm { kComposed, kCompatibilityComposed };  // NFC, NFKC
std::u32string normalize(std::u32string_view text, NormalForm form);
// Full case mapping of the root locale ("ß" becomes "SS").
std::u32string toUpper(std::u32string_view text);

// White_Space of Unicode. stripSpace() takes the four separators U+001C..U+001F for space too.
bool isWhiteSpace(char32_t character);
std::u32string_view stripSpace(std::u32string_view text);
// Letters, numbers and the underscore.
bool isWordCharacter(char32_t character);
bool isDecimalDigit(char32_t character);

}  // namespace latentd::stages
