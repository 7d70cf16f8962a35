#include "stages/text/mojibake_evidence.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <vector>

#include "stages/text/single_byte_charsets.h"
#include "stages/text/unicode_text.h"

namespace latentd::stages {
namespace {

// What a character is as a neighbour. Only characters of the single-byte charsets have one of the first group: no
// others come out of misread UTF-8.
enum Kind : uint32_t {
  kAnywhere = 1 << 0,  // dashes, the apostrophe, the no-break space: usual beside anything
  kControl = 1 << 1,   // U+0080 to U+009F, which nobody types
  kDebris = 1 << 2,    // lone accents, daggers and the like: hardly seen but in mojibake
  kLaw = 1 << 3,       // paragraph and section signs
  kCurrency = 1 << 4,
  kOpening = 1 << 5,  // begins a quotation or an item
  kClosing = 1 << 6,  // ends one, or is written after a name
  kNumber = 1 << 7,   // mathematics, fractions, superscripts
  kRound = 1 << 8,    // O and U with accents: the eyes and mouths of drawn faces, so usual in odd places
  kUpperAccent = 1 << 9,
  kLowerAccent = 1 << 10,
  kUpperOther = 1 << 11,  // Greek, Cyrillic
  kLowerOther = 1 << 12,
  kBox = 1 << 13,  // lines and blocks of terminal drawings
  kAsciiLower = 1 << 14,
  kAsciiUpper = 1 << 15,
  kNoAsciiLetter = 1 << 16,
  kSpace = 1 << 17,
  kWord = 1 << 18,
  kInLine = 1 << 19,  // anything but a line feed
};
using Kinds = uint32_t;

constexpr Kinds kAccents = kUpperAccent | kLowerAccent;
constexpr Kinds kSigns = kBox | kOpening | kClosing | kCurrency | kNumber | kLaw;
constexpr Kinds kQuotes = kOpening | kClosing;

struct KindGroup {
  std::u32string_view characters;
  Kinds kinds;
};

// Where the general category of Unicode does not say how a character is used.
constexpr KindGroup kExceptions[] = {
    {U"\u00A0\u00AD\u00B7\u00B4\u2013\u2014\u2015\u2026\u2019", kAnywhere},
    {U"\u00A4\u00A6\u00AA\u00AC\u00BA\u0192\u2020\u2021\u2030\u2310\u25CA\uFFFD", kDebris},
    {U"\u00B6\u00A7", kLaw},
    {U"\u00A1\u00A9\u00BF\u0384\u0385\u2022\uF8FF", kOpening},
    {U"\u00AE\u02DD\u2122", kClosing},
    {U"\u00B5\u2116", kNumber},
    {U"ÒÓÔÕÖÙÚÛòóôõöøùúûŐŌŪŲ\u00B0", kRound},
    {U"Ü", kRound | kUpperAccent},
    {U"ü", kRound | kLowerAccent},
    {U"ŮŰ\u0490", kUpperAccent},
    {U"\u0491\uFB01\uFB02", kLowerAccent},
    {U"Þ", kUpperOther},
    // Rare both in text and in mojibake.
    {U"ĮŔŖńŗ\u0390\u03CA\u03CB\u03CC\u03CD\u03CE\u02D9\u02DA\u207F\u2219\u2320\u2321\u2500\u2514\u2534", 0},
};

bool isLatin(char32_t c) { return c < 0x250; }

// Bytes from 0x80 to 0xF1 begin or continue a character in UTF-8; the Windows charsets and Latin-1 are the usual
// readers.
bool comesFromUtf8(const SingleByteRow& row) {
  for (size_t charset = 0; charset <= static_cast<size_t>(Charset::kWindows1257); ++charset) {
    if (row.bytes[charset] >= 0x80 && row.bytes[charset] <= 0xF1) return true;
  }
  return false;
}

Kinds letterKind(char32_t c, const SingleByteRow& row, bool upper) {
  if (!isLatin(c)) return upper ? kUpperOther : kLowerOther;
  if (!comesFromUtf8(row)) return 0;
  return upper ? kUpperAccent : kLowerAccent;
}

Kinds charsetKind(char32_t c, const SingleByteRow& row) {
  for (const KindGroup& group : kExceptions) {
    if (group.characters.find(c) != std::u32string_view::npos) return group.kinds;
  }
  if (c >= 0x2500 && c <= 0x2593) return kBox;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_CONTROL_CHAR:
      return kControl;
    case U_UPPERCASE_LETTER:
      return letterKind(c, row, true);
    case U_LOWERCASE_LETTER:
      return letterKind(c, row, false);
    case U_CURRENCY_SYMBOL:
      return kCurrency;
    case U_MATH_SYMBOL:
    case U_OTHER_NUMBER:
      return kNumber;
    case U_MODIFIER_SYMBOL:
    case U_MODIFIER_LETTER:
      return kDebris;
    case U_INITIAL_PUNCTUATION:
    case U_START_PUNCTUATION:
      return kOpening;
    case U_FINAL_PUNCTUATION:
    case U_END_PUNCTUATION:
      return kClosing;
    default:
      return 0;
  }
}

Kinds kindsOf(char32_t c) {
  Kinds kinds = kInLine;
  if (c < 0x80) {
    if (c >= U'a' && c <= U'z') return kinds | kAsciiLower | kWord;
    if (c >= U'A' && c <= U'Z') return kinds | kAsciiUpper | kWord;
    if (c == U'\n') kinds = 0;
  }
  kinds |= kNoAsciiLetter;
  if (isWordCharacter(c)) kinds |= kWord;
  if (isWhiteSpace(c) || (c >= 0x1C && c <= 0x1F)) kinds |= kSpace;
  const SingleByteRow* row = singleByteRow(c);
  return row == nullptr ? kinds : kinds | charsetKind(c, *row);
}

// A kind, and the kinds that are unlikely right after it.
struct Neighbours {
  Kinds first;
  Kinds second;
};
constexpr Neighbours kUnlikelyPairs[] = {
    {kDebris, kDebris | kAccents | kSigns},
    {kLowerAccent, kDebris | kUpperAccent | kCurrency | kBox},
    {kUpperAccent, kDebris | kNumber | kLaw | kBox},
    {kLowerOther, kUpperAccent},
    {kCurrency | kNumber, kDebris | kAccents | kOpening | kBox},
    {kClosing, kDebris | kAccents | kCurrency | kBox},
    {kOpening | kLaw, kDebris | kBox},
    {kBox, kDebris | kAccents | kCurrency | kNumber | kLaw | kQuotes | kRound},
};

// One position of a longer sequence: any of the kinds, or any of the characters.
struct Slot {
  Kinds kinds = 0;
  std::u32string_view characters = {};

  bool accepts(char32_t c, Kinds c_kinds) const {
    return (kinds & c_kinds) != 0 || characters.find(c) != std::u32string_view::npos;
  }
};

// A sequence that is unlikely as a whole. Every one has a character outside ASCII among its first three.
struct Sequence {
  std::initializer_list<Slot> slots;
  bool at_start = false;  // only at the start of the text
};

constexpr size_t kReach = 3;

// Accepts after the first byte of Arabic letters (D8, D9) in Windows-1252.
constexpr Slot kArabicLead = {0, U"ØÙ"};
constexpr Slot kArabicTail = {kAnywhere | kCurrency | kDebris | kNumber | kOpening, U"ŸŠ®°µ»"};
constexpr Kinds kTailSigns = kControl | kDebris | kQuotes | kCurrency;
constexpr Slot kCyrillicLead = {0, U"ВГРС"};
constexpr Slot kGreekLead = {0, U"ΒΓΞΟ"};

constexpr Sequence kUnlikelySequences[] = {
    // Signs where the letters around them make no sense of them.
    {{{kAsciiLower | kAsciiUpper}, {kLowerOther | kUpperOther}, {kDebris}}},
    {{{kSpace}, {kUpperAccent}, {kCurrency}}},
    {{{kAsciiLower}, {kUpperAccent}, {kOpening | kCurrency}}},
    {{{kAccents}, {kQuotes}, {kWord}}},
    {{{kAccents | kBox | kCurrency | kClosing}, {kOpening}, {kNumber}}},
    {{{kAccents | kCurrency | kNumber | kBox | kLaw}, {kClosing}, {kOpening}}},
    {{{kUpperAccent}, {0, U"°"}}},
    // Windows-1252: the bytes C2, C3, CE, D0, D7, E0 and what follows them in common letters.
    {{{0, U"ÂÃÎÐ"}, {kQuotes, U"€œŠš¢£Ÿž\u00A0\u00AD®©°·»–—´"}}},
    {{{0, U"Ã"}, {0, U"\u00A0¡"}}},
    {{{0, U"×"}, {0, U"²³"}}},
    {{{0, U"à"}, {0, U"²µ¹¼½¾"}}},
    {{kArabicLead, kArabicTail, kArabicLead, kArabicTail}},
    {{{0, U"Œœ"}, {kNoAsciiLetter}}},
    // The same with a no-break space that became a plain one.
    {{{kAsciiLower}, {0, U"ÃÂ"}, {0, U" "}}},
    {{{kAsciiLower}, {kSpace}, {0, U"ÃÂ"}, {0, U" "}}},
    {{{0, U"ÃÂ"}, {0, U" "}}, true},
    {{{kAsciiLower | kClosing, U".,?!"}, {0, U"Â"}, {kQuotes, U" "}}},
    // Mac Roman: C3, C5 to C9, E2 80 and E2 with the bytes of arrows and dashes.
    {{{0, U"√"}, {0, U"±∂†≠®™´≤≥¥µø"}}},
    {{{0, U"≈"}, {0, U"°¢"}}},
    {{{0, U"‚"}, {0, U"Ä"}, {0, U"ìîïòôúùû†°¢π"}}},
    {{{0, U"‚"}, {0, U"âó"}, {0, U"àä°ê"}}},
    // Windows-1251 and 1253: pairs are usual in their languages, two alike around a sign are not. E2 80 is not
    // usual in any.
    {{{0, U"в"}, {0, U"Ђ"}}},
    {{kCyrillicLead, {kTailSigns, U"°µ"}, kCyrillicLead}},
    {{{0, U"Г"}, {0, U"ў"}, {0, U"В"}, {0, U"Ђ"}, {0, U"В"}, {kInLine}, {kAsciiLower | kAsciiUpper, U" "}}},
    {{{0, U"β"}, {0, U"€"}, {0, U"™\u00A0Ά\u00AD®°"}}},
    {{kGreekLead, {kTailSigns, U"°"}, kGreekLead}},
    // Windows-1257: E2 80.
    {{{0, U"ā"}, {0, U"€"}}},
};

bool matches(const Sequence& sequence, std::u32string_view text, const std::vector<Kinds>& kinds, size_t at) {
  if (sequence.at_start && at != 0) return false;
  if (sequence.slots.size() > text.size() - at) return false;
  return std::all_of(sequence.slots.begin(), sequence.slots.end(), [&, i = at](const Slot& slot) mutable {
    const size_t position = i++;
    return slot.accepts(text[position], kinds[position]);
  });
}

bool isUnlikelySequence(std::u32string_view text, const std::vector<Kinds>& kinds, size_t at) {
  return std::any_of(std::begin(kUnlikelySequences), std::end(kUnlikelySequences),
                     [&](const Sequence& sequence) { return matches(sequence, text, kinds, at); });
}

bool isUnlikelyPair(Kinds first, Kinds second) {
  return std::any_of(std::begin(kUnlikelyPairs), std::end(kUnlikelyPairs),
                     [&](const Neighbours& pair) { return (pair.first & first) != 0 && (pair.second & second) != 0; });
}

}  // namespace

bool looksLikeMojibake(std::u32string_view text) {
  std::vector<Kinds> kinds;
  kinds.reserve(text.size());
  for (char32_t c : text)
    kinds.push_back(kindsOf(c));
  for (size_t at = 0; at < text.size(); ++at) {
    if ((kinds[at] & kControl) != 0) return true;
    const auto near = text.substr(at, kReach);
    if (std::all_of(near.begin(), near.end(), [](char32_t c) { return c < 0x80; })) continue;
    if (at + 1 < text.size() && isUnlikelyPair(kinds[at], kinds[at + 1])) return true;
    if (isUnlikelySequence(text, kinds, at)) return true;
  }
  return false;
}

}  // namespace latentd::stages
