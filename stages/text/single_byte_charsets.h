#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace latentd::stages {

// The charsets that UTF-8 is commonly misread as, in the order in which they are tried. The Windows ones are lenient:
// a byte they leave unassigned stands for the code point of the same number, and 0x1A for U+FFFD (a lost byte).
enum class Charset : uint8_t {
  kLatin1,
  kWindows1252,
  kWindows1251,
  kWindows1250,
  kWindows1253,
  kWindows1254,
  kWindows1257,
  kIso8859_2,
  kMacRoman,
  kCp437,
};
constexpr size_t kCharsetCount = 10;

constexpr bool isLenient(Charset charset) {
  return charset >= Charset::kWindows1252 && charset <= Charset::kWindows1257;
}

// A character and its byte in each charset, 0 where the charset has no such character. The characters of ASCII are the
// same everywhere and have no row.
struct SingleByteRow {
  char16_t character;
  std::array<uint8_t, kCharsetCount> bytes;

  uint8_t in(Charset charset) const { return bytes[static_cast<size_t>(charset)]; }
};

// Sorted by character.
std::span<const SingleByteRow> singleByteRows();

// The row of a character; null if no charset has it, and for ASCII.
const SingleByteRow* singleByteRow(char32_t character);

// The bytes of a text in a charset; absent if a character is not in it. `rows` holds singleByteRow() of each.
std::optional<std::string> encodeSingleByte(const std::u32string& text, const std::vector<const SingleByteRow*>& rows,
                                            Charset charset);

// What Windows-1252 has at a byte of 0x80 to 0x9F.
char32_t windows1252At(uint8_t byte);

}  // namespace latentd::stages
