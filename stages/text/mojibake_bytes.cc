#include "stages/text/mojibake_bytes.h"

#include <cstdint>
#include <initializer_list>

#include "stages/text/unicode_text.h"

namespace latentd::stages {
namespace {

constexpr std::string_view kNoBreakSpace = "\xC2\xA0";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr char kLostByte = 0x1A;

uint8_t byteAt(std::string_view bytes, size_t at) { return at < bytes.size() ? static_cast<uint8_t>(bytes[at]) : 0; }

bool isIn(uint8_t byte, uint8_t low, uint8_t high) { return byte >= low && byte <= high; }
bool isTail(uint8_t byte) { return isIn(byte, 0x80, 0xBF); }
// In sequences of three, a tail that is no space itself: A0 is a no-break space, and 85 became a line break.
bool isInkTail(uint8_t byte) { return isTail(byte) && byte != 0x85 && byte != 0xA0; }

// Bytes of a sequence at `at` which is valid once one space in it is A0 again; 0 if there is none.
size_t spacedSequence(std::string_view bytes, size_t at) {
  const uint8_t lead = byteAt(bytes, at);
  const uint8_t second = byteAt(bytes, at + 1);
  const uint8_t third = byteAt(bytes, at + 2);
  // No-break space, à, Š, Π, Р and the Arabic zero: the others would be letters that are rarer than the space.
  constexpr std::string_view kLeads2 = "\xC2\xC3\xC5\xCE\xD0\xD9";
  if (second == ' ' && kLeads2.find(static_cast<char>(lead)) != std::string_view::npos && lead != 0) return 2;
  // E0 A0 and E1 A0 begin rare scripts, so a space right after those leads was one.
  if (isIn(lead, 0xE2, 0xE3) && second == ' ' && isInkTail(third)) return 3;
  if (isIn(lead, 0xE0, 0xE3) && isInkTail(second) && third == ' ') return 3;
  if (lead != 0xF0) return 0;
  int spaces = 0;
  for (size_t i = at + 1; i <= at + 3; ++i) {
    if (byteAt(bytes, i) == ' ') {
      ++spaces;
    } else if (!isTail(byteAt(bytes, i))) {
      return 0;
    }
  }
  return spaces == 1 ? 4 : 0;
}

// "à" as a word of its own keeps its space; but not in the Portuguese "às" and "àquele" with its kin.
std::string restoreLoneAGrave(std::string_view bytes) {
  std::string restored;
  for (size_t at = 0; at < bytes.size(); ++at) {
    restored.push_back(bytes[at]);
    if (byteAt(bytes, at) != 0xC3 || byteAt(bytes, at + 1) != ' ') continue;
    const std::string_view rest = bytes.substr(at + 2);
    bool joined = false;
    for (std::string_view beginning : {" ", "quele", "quela", "quilo", "s "})
      joined = joined || rest.starts_with(beginning);
    if (joined) continue;
    restored += "\xA0 ";
    ++at;
  }
  return restored;
}

// The bytes that may stand at one position of a damaged sequence.
enum class Part {
  kTail,
  kTailOrLost,
  kLost,
  kLostOrMark,
  kTailLostOrMark,
  kHighSurrogate,
  kLowSurrogate,
  kSurrogateLead
};

bool isPart(uint8_t byte, Part part) {
  const bool lost = byte == static_cast<uint8_t>(kLostByte);
  switch (part) {
    case Part::kTail:
      return isTail(byte);
    case Part::kTailOrLost:
      return isTail(byte) || lost;
    case Part::kLost:
      return lost;
    case Part::kLostOrMark:
      return lost || byte == '?';
    case Part::kTailLostOrMark:
      return isTail(byte) || lost || byte == '?';
    case Part::kHighSurrogate:
      return isIn(byte, 0xA0, 0xAF);
    case Part::kLowSurrogate:
      return isIn(byte, 0xB0, 0xBF);
    case Part::kSurrogateLead:
      return byte == 0xED;
  }
  return false;
}

struct DamagedForm {
  uint8_t lead_low;
  uint8_t lead_high;
  std::initializer_list<Part> rest;
};

// Bytes of a damaged sequence at `at`; 0 if there is none. One "?" a sequence counts as damage, as it is usual text.
size_t damagedSequence(std::string_view bytes, size_t at) {
  using enum Part;
  const DamagedForm forms[] = {
      {0xC2, 0xDF, {kLost}},
      {0xC2, 0xC3, {kLostOrMark}},
      {0xED, 0xED, {kHighSurrogate, kLostOrMark, kSurrogateLead, kLowSurrogate, kTailLostOrMark}},
      {0xED, 0xED, {kHighSurrogate, kTailLostOrMark, kSurrogateLead, kLowSurrogate, kLostOrMark}},
      {0xE0, 0xEF, {kLostOrMark, kTailOrLost}},
      {0xE0, 0xEF, {kTailOrLost, kLostOrMark}},
      {0xF0, 0xF4, {kLostOrMark, kTailOrLost, kTailOrLost}},
      {0xF0, 0xF4, {kTailOrLost, kLostOrMark, kTailOrLost}},
      {0xF0, 0xF4, {kTailOrLost, kTailOrLost, kLostOrMark}},
  };
  for (const DamagedForm& form : forms) {
    if (!isIn(byteAt(bytes, at), form.lead_low, form.lead_high)) continue;
    size_t end = at + 1;
    for (Part part : form.rest) {
      if (!isPart(byteAt(bytes, end), part)) break;
      ++end;
    }
    if (end - at == form.rest.size() + 1) return end - at;
  }
  return bytes[at] == kLostByte ? 1 : 0;
}

// The character above U+FFFF that two surrogates at `at` write in six bytes.
std::optional<char32_t> surrogatePair(std::string_view bytes, size_t at) {
  using enum Part;
  size_t i = at;
  for (Part part : {kSurrogateLead, kHighSurrogate, kTail, kSurrogateLead, kLowSurrogate, kTail}) {
    if (!isPart(byteAt(bytes, i++), part)) return std::nullopt;
  }
  const auto bits = [&](size_t offset, uint8_t mask) {
    return static_cast<char32_t>(byteAt(bytes, at + offset) & mask);
  };
  return 0x10000 + (bits(1, 0x0F) << 16) + (bits(2, 0x3F) << 10) + (bits(4, 0x0F) << 6) + bits(5, 0x3F);
}

}  // namespace

std::string restoreNoBreakSpaces(std::string bytes) {
  bool any = false;
  for (size_t at = 0; at < bytes.size() && !any; ++at)
    any = spacedSequence(bytes, at) != 0;
  if (!any) return bytes;
  std::string restored = restoreLoneAGrave(bytes);
  for (size_t at = 0; at < restored.size();) {
    const size_t length = spacedSequence(restored, at);
    for (size_t i = at; i < at + length; ++i) {
      if (restored[i] == ' ') restored[i] = kNoBreakSpace[1];
    }
    at += length == 0 ? 1 : length;
  }
  return restored;
}

std::string replaceLostSequences(std::string_view bytes) {
  std::string replaced;
  replaced.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = damagedSequence(bytes, at);
    if (length == 0) {
      replaced.push_back(bytes[at++]);
    } else {
      replaced += kReplacement;
      at += length;
    }
  }
  return replaced;
}

std::optional<std::u32string> decodeUtf8Variants(std::string_view bytes) {
  std::u32string text;
  size_t plain = 0;  // where the bytes that are ordinary UTF-8 begin
  const auto flush = [&](size_t end) {
    const std::optional<std::u32string> decoded = decodeUtf8(bytes.substr(plain, end - plain));
    if (decoded.has_value()) text += *decoded;
    return decoded.has_value();
  };
  for (size_t at = 0; at < bytes.size();) {
    const bool null = byteAt(bytes, at) == 0xC0 && byteAt(bytes, at + 1) == 0x80;
    const std::optional<char32_t> pair = surrogatePair(bytes, at);
    if (!null && !pair.has_value()) {
      ++at;
      continue;
    }
    if (!flush(at)) return std::nullopt;
    text.push_back(null ? U'\0' : *pair);
    at += null ? 2 : 6;
    plain = at;
  }
  if (!flush(bytes.size())) return std::nullopt;
  return text;
}

}  // namespace latentd::stages
