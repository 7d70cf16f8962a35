#include "stages/text/html_entities.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "stages/text/html_entity_table.h"
#include "stages/text/single_byte_charsets.h"
#include "stages/text/unicode_text.h"

namespace latentd::stages {
namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kCodePointMax = 0x10FFFF;
// The longest name of HTML5, with its ";" ("CounterClockwiseContourIntegral;").
constexpr size_t kNameMax = 32;
// The longest name, or number with its "#"-less digits, that is taken for certainly meant.
constexpr size_t kCertainNameMax = 24;

bool isDigit(char32_t c) { return c >= U'0' && c <= U'9'; }
bool isLower(char32_t c) { return c >= U'a' && c <= U'z'; }
bool isUpper(char32_t c) { return c >= U'A' && c <= U'Z'; }
bool isHexLetter(char32_t c) { return (c >= U'a' && c <= U'f') || (c >= U'A' && c <= U'F'); }
bool endsName(char32_t c) {
  return c == U'\t' || c == U'\n' || c == U'\f' || c == U' ' || c == U'<' || c == U'&' || c == U'#' || c == U';';
}

const HtmlEntity* findEntity(std::string_view name) {
  const auto entities = htmlEntities();
  const auto found = std::lower_bound(entities.begin(), entities.end(), name,
                                      [](const HtmlEntity& entity, std::string_view key) { return entity.name < key; });
  return found != entities.end() && found->name == name ? &*found : nullptr;
}

std::u32string valueOf(const HtmlEntity& entity) {
  return std::u32string(entity.value.data(), entity.value[1] == 0 ? 1 : 2);
}

// ASCII as it is; anything else becomes a byte that no name contains.
std::string asName(std::u32string_view text) {
  std::string name;
  for (char32_t c : text)
    name.push_back(c < 0x80 ? static_cast<char>(c) : '\xFF');
  return name;
}

// Control characters and non-characters, which a document may not contain.
bool isForbidden(char32_t number) {
  const bool control = (number >= 0x1 && number <= 0x8) || number == 0xB || (number >= 0xE && number <= 0x1F) ||
                       (number >= 0x7F && number <= 0x9F);
  return control || (number >= 0xFDD0 && number <= 0xFDEF) || (number & 0xFFFE) == 0xFFFE;
}

std::u32string characterOf(char32_t number) {
  if (number >= 0x80 && number <= 0x9F) return std::u32string(1, windows1252At(static_cast<uint8_t>(number)));
  if (number == 0 || (number >= 0xD800 && number <= 0xDFFF) || number > kCodePointMax) {
    return std::u32string(1, kReplacement);
  }
  if (isForbidden(number)) return {};
  return std::u32string(1, number);
}

struct Reference {
  size_t length;  // characters of the text it takes, with the "&"
  std::u32string value;
};

// text begins with "&#".
std::optional<Reference> numericReference(std::u32string_view text) {
  size_t end = 2;
  const bool hexadecimal = text.size() > end && (text[end] == U'x' || text[end] == U'X');
  if (hexadecimal) ++end;
  const size_t digits = end;
  char32_t number = 0;
  for (; end < text.size() && (isDigit(text[end]) || (hexadecimal && isHexLetter(text[end]))); ++end) {
    const char32_t c = text[end];
    const char32_t digit = isDigit(c) ? c - U'0' : (c | 0x20) - U'a' + 10;
    // Saturates, so that any number of digits is fine.
    number = std::min<char32_t>(number * (hexadecimal ? 16 : 10) + digit, kCodePointMax + 1);
  }
  if (end == digits) return std::nullopt;
  if (end < text.size() && text[end] == U';') ++end;
  return Reference{end, characterOf(number)};
}

// text begins with "&" and no "#". The longest known beginning of the name counts; the rest stays.
std::optional<Reference> namedReference(std::u32string_view text) {
  size_t end = 1;
  while (end < text.size() && end <= kNameMax && !endsName(text[end]))
    ++end;
  if (end == 1) return std::nullopt;
  if (end < text.size() && text[end] == U';') ++end;
  const std::string name = asName(text.substr(1, end - 1));
  // No name has one character.
  for (size_t length = name.size(); length >= 2; --length) {
    const HtmlEntity* entity = findEntity(std::string_view(name).substr(0, length));
    if (entity != nullptr) return Reference{1 + length, valueOf(*entity)};
  }
  return Reference{end, std::u32string(text.substr(0, end))};
}

std::optional<Reference> anyReference(std::u32string_view text) {
  return text.size() > 1 && text[1] == U'#' ? numericReference(text) : namedReference(text);
}

// "&NAME;" where only "&name;" is known, even by the beginning of its name.
std::optional<std::u32string> capitalReference(std::u32string_view reference) {
  std::string name = asName(reference.substr(1));
  if (std::any_of(name.begin(), name.end(), [](char c) { return isLower(static_cast<unsigned char>(c)); })) {
    return std::nullopt;
  }
  for (char& c : name)
    if (isUpper(static_cast<unsigned char>(c))) c = static_cast<char>(c | 0x20);
  const HtmlEntity* entity = findEntity(name);
  if (entity == nullptr || unescapeHtml(reference) != reference) return std::nullopt;
  return toUpper(valueOf(*entity));
}

std::optional<Reference> certainReference(std::u32string_view text) {
  const bool numeric = text.size() > 1 && text[1] == U'#';
  const size_t begin = numeric ? 2 : 1;
  size_t end = begin;
  while (end < text.size() && end - begin < kCertainNameMax &&
         (isDigit(text[end]) || isLower(text[end]) || isUpper(text[end])))
    ++end;
  if (end == begin || end == text.size() || text[end] != U';') return std::nullopt;
  ++end;
  const std::u32string_view reference = text.substr(0, end);
  if (numeric) {
    // A number with trailing letters, or one that stands for ";", is left alone.
    std::u32string value = unescapeHtml(reference);
    if (value.find(U';') != std::u32string::npos) value = reference;
    return Reference{end, std::move(value)};
  }
  if (const HtmlEntity* entity = findEntity(asName(reference.substr(1)))) return Reference{end, valueOf(*entity)};
  return Reference{end, capitalReference(reference).value_or(std::u32string(reference))};
}

// As certainReference, and "&amp;amp;amp;" is one reference to "&": what repeated mending makes of it, without a round
// over the whole text for each level.
std::optional<Reference> certainReferenceChain(std::u32string_view text) {
  std::optional<Reference> chain = certainReference(text);
  while (chain.has_value() && chain->value == U"&") {
    // What one reference takes at most: "#", name or number, ";".
    const std::u32string next = U"&" + std::u32string(text.substr(chain->length, kCertainNameMax + 2));
    const std::optional<Reference> inner = certainReference(next);
    if (!inner.has_value() || inner->value != U"&") break;
    chain->length += inner->length - 1;
  }
  return chain;
}

template <class Match>
std::u32string replaceReferences(std::u32string_view text, Match match) {
  std::u32string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::optional<Reference> reference = text.front() == U'&' ? match(text) : std::nullopt;
    if (reference.has_value()) {
      result += reference->value;
      text.remove_prefix(reference->length);
    } else {
      result.push_back(text.front());
      text.remove_prefix(1);
    }
  }
  return result;
}

}  // namespace

std::u32string unescapeHtml(std::u32string_view text) { return replaceReferences(text, anyReference); }

std::u32string unescapeCertainHtml(std::u32string_view text) { return replaceReferences(text, certainReferenceChain); }

}  // namespace latentd::stages
