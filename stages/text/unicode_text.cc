#include "stages/text/unicode_text.h"

#include <fmt/format.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include "runtime/base/check.h"

namespace latentd::stages {
namespace {

// Decodes up to the first ill-formed byte and returns its offset, or the length.
size_t decodePrefix(std::string_view bytes, std::u32string& text) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t size = bytes.size();
  size_t offset = 0;
  while (offset < size) {
    const size_t start = offset;
    UChar32 character = 0;
    U8_NEXT(data, offset, size, character);
    if (character < 0) return start;
    text.push_back(static_cast<char32_t>(character));
  }
  return size;
}

icu::UnicodeString toIcu(std::u32string_view text) {
  return icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(text.data()),
                                       static_cast<int32_t>(text.size()));
}

std::u32string fromIcu(const icu::UnicodeString& text) {
  std::u32string characters;
  characters.reserve(static_cast<size_t>(text.length()));
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    characters.push_back(static_cast<char32_t>(text.char32At(i)));
  }
  return characters;
}

bool isStripped(char32_t character) { return isWhiteSpace(character) || (character >= 0x1C && character <= 0x1F); }

}  // namespace

std::optional<std::u32string> decodeUtf8(std::string_view bytes) {
  std::u32string text;
  text.reserve(bytes.size());
  if (decodePrefix(bytes, text) != bytes.size()) return std::nullopt;
  return text;
}

StatusOr<std::u32string> decodeUtf8OrExplain(std::string_view bytes) {
  std::u32string text;
  text.reserve(bytes.size());
  const size_t bad = decodePrefix(bytes, text);
  if (bad == bytes.size()) return text;
  return absl::InvalidArgumentError(fmt::format("byte 0x{:02X} at offset {} is not valid UTF-8; expected text in UTF-8",
                                                static_cast<uint8_t>(bytes[bad]), bad));
}

std::string encodeUtf8(std::u32string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (char32_t character : text) {
    uint8_t buffer[U8_MAX_LENGTH];
    int32_t length = 0;
    U8_APPEND_UNSAFE(buffer, length, static_cast<UChar32>(character));
    bytes.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
  }
  return bytes;
}

std::u32string normalize(std::u32string_view text, NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = form == NormalForm::kComposed ? icu::Normalizer2::getNFCInstance(error)
                                                                     : icu::Normalizer2::getNFKCInstance(error);
  // Only a broken ICU installation fails here.
  LATENTD_CHECK(U_SUCCESS(error), "ICU has no normalization data");
  const icu::UnicodeString normalized = normalizer->normalize(toIcu(text), error);
  LATENTD_CHECK(U_SUCCESS(error), "ICU could not normalize");
  return fromIcu(normalized);
}

std::u32string toUpper(std::u32string_view text) {
  icu::UnicodeString characters = toIcu(text);
  return fromIcu(characters.toUpper(icu::Locale::getRoot()));
}

bool isWhiteSpace(char32_t character) {
  return u_hasBinaryProperty(static_cast<UChar32>(character), UCHAR_WHITE_SPACE) != 0;
}

std::u32string_view stripSpace(std::u32string_view text) {
  while (!text.empty() && isStripped(text.front()))
    text.remove_prefix(1);
  while (!text.empty() && isStripped(text.back()))
    text.remove_suffix(1);
  return text;
}

bool isWordCharacter(char32_t character) {
  constexpr uint32_t kLettersAndNumbers = U_GC_L_MASK | U_GC_N_MASK;
  return character == U'_' || (U_GET_GC_MASK(static_cast<UChar32>(character)) & kLettersAndNumbers) != 0;
}

bool isDecimalDigit(char32_t character) {
  return u_charType(static_cast<UChar32>(character)) == U_DECIMAL_DIGIT_NUMBER;
}

}  // namespace latentd::stages
