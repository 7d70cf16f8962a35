#include "runtime/base/utf8.h"

#include <algorithm>
#include <cstdint>

namespace latentd {
namespace {

struct Lead {
  size_t length;       // of the whole sequence
  uint8_t second_min;  // range of the second byte: excludes overlong forms, surrogates and values above U+10FFFF
  uint8_t second_max;
};

Lead classify(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

std::optional<size_t> firstInvalidUtf8(std::string_view text) {
  const auto at = [&](size_t index) { return static_cast<uint8_t>(text[index]); };
  size_t index = 0;
  while (index < text.size()) {
    const Lead lead = classify(at(index));
    if (lead.length == 0 || index + lead.length > text.size()) return index;
    for (size_t offset = 1; offset < lead.length; ++offset) {
      const uint8_t low = offset == 1 ? lead.second_min : 0x80;
      const uint8_t high = offset == 1 ? lead.second_max : 0xBF;
      if (at(index + offset) < low || at(index + offset) > high) return index;
    }
    index += lead.length;
  }
  return std::nullopt;
}

std::optional<std::string> describeInvalidUtf8(std::string_view text) {
  const std::optional<size_t> offset = firstInvalidUtf8(text);
  if (!offset) return std::nullopt;
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<uint8_t>(text[*offset]);
  return std::string("is not UTF-8: byte 0x") + kDigits[byte >> 4] + kDigits[byte & 15] + " at offset " +
         std::to_string(*offset) + "; send it as UTF-8";
}

}  // namespace latentd
