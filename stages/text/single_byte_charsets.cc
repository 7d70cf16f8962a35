#include "stages/text/single_byte_charsets.h"

#include <algorithm>

namespace latentd::stages {
namespace {

constexpr char32_t kSubstitute = 0x1A;

}  // namespace

const SingleByteRow* singleByteRow(char32_t character) {
  const auto rows = singleByteRows();
  const auto found = std::lower_bound(rows.begin(), rows.end(), character,
                                      [](const SingleByteRow& row, char32_t wanted) { return row.character < wanted; });
  return found != rows.end() && found->character == character ? &*found : nullptr;
}

std::optional<std::string> encodeSingleByte(const std::u32string& text, const std::vector<const SingleByteRow*>& rows,
                                            Charset charset) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    if (text[i] < 0x80) {
      // Taken by U+FFFD there.
      if (text[i] == kSubstitute && isLenient(charset)) return std::nullopt;
      byte = static_cast<uint8_t>(text[i]);
    } else {
      byte = rows[i] == nullptr ? 0 : rows[i]->in(charset);
      if (byte == 0) return std::nullopt;
    }
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

char32_t windows1252At(uint8_t byte) {
  const auto rows = singleByteRows();
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [byte](const SingleByteRow& row) { return row.in(Charset::kWindows1252) == byte; });
  return found == rows.end() ? byte : found->character;
}

}  // namespace latentd::stages
