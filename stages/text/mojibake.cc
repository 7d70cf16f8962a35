#include "stages/text/mojibake.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "stages/text/mojibake_bytes.h"
#include "stages/text/mojibake_evidence.h"
#include "stages/text/single_byte_charsets.h"

namespace latentd::stages {
namespace {

bool isAscii(std::u32string_view text) {
  return std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x80; });
}

// The whole text as bytes of one charset, read as UTF-8; the first charset that makes sense.
std::optional<std::u32string> rereadWhole(const std::u32string& text) {
  std::vector<const SingleByteRow*> rows;
  rows.reserve(text.size());
  for (char32_t c : text)
    rows.push_back(singleByteRow(c));
  for (size_t index = 0; index < kCharsetCount; ++index) {
    const auto charset = static_cast<Charset>(index);
    std::optional<std::string> bytes = encodeSingleByte(text, rows, charset);
    if (!bytes.has_value()) continue;
    // In Mac Roman an en dash is a byte that begins characters, and a space after it is usual.
    if (charset != Charset::kMacRoman) bytes = restoreNoBreakSpaces(std::move(*bytes));
    if (isLenient(charset)) bytes = replaceLostSequences(*bytes);
    if (auto reread = decodeUtf8Variants(*bytes)) return reread;
  }
  return std::nullopt;
}

// What a character can be in UTF-8 if it was read in Latin-1 or a Windows charset.
struct Utf8Roles {
  bool leads_2 = false;
  bool leads_3 = false;
  bool leads_4 = false;
  bool continues = false;
  bool only_continues = false;  // a continuation that is not also usual punctuation
};

Utf8Roles rolesOf(char32_t c) {
  Utf8Roles roles;
  roles.continues = c == U' ';  // it may have been a no-break space
  const SingleByteRow* row = singleByteRow(c);
  if (row == nullptr) return roles;
  for (size_t index = 0; index <= static_cast<size_t>(Charset::kWindows1257); ++index) {
    const uint8_t byte = row->bytes[index];
    roles.leads_2 |= byte >= 0xC2 && byte <= 0xDF;
    roles.leads_3 |= byte >= 0xE0 && byte <= 0xEF;
    // F0: emoji and rare scripts. F3: tags. Nothing is assigned between, and private use follows.
    roles.leads_4 |= byte == 0xF0 || byte == 0xF3;
    roles.continues |= byte >= 0x80 && byte <= 0xBF;
  }
  const bool punctuation = c >= 0x2013 && c <= 0x2026 && c != 0x2020 && c != 0x2021;
  roles.only_continues = roles.continues && !punctuation;
  return roles;
}

// Characters of a run, from `at` on, that could be UTF-8 sequences one after another.
size_t runLength(const std::vector<Utf8Roles>& roles, size_t at) {
  const auto continues = [&](size_t from, size_t count) {
    if (from + count > roles.size()) return false;
    return std::all_of(roles.begin() + from, roles.begin() + from + count,
                       [](const Utf8Roles& role) { return role.continues; });
  };
  size_t end = at;
  while (end < roles.size()) {
    if (roles[end].leads_2 && continues(end + 1, 1)) {
      end += 2;
    } else if (roles[end].leads_3 && continues(end + 1, 2)) {
      end += 3;
    } else if (roles[end].leads_4 && continues(end + 1, 3)) {
      end += 4;
    } else {
      break;
    }
  }
  return end - at;
}

// Repairs runs that look broken by themselves, in a text that no single charset explains.
std::u32string repairRuns(const std::u32string& text) {
  std::vector<Utf8Roles> roles;
  roles.reserve(text.size());
  for (char32_t c : text)
    roles.push_back(rolesOf(c));
  std::u32string repaired;
  size_t at = 0;
  while (at < text.size()) {
    // Inside a larger garble, a part that happens to fit would make it worse.
    const bool in_garble = at > 0 && roles[at - 1].only_continues;
    const size_t length = in_garble ? 0 : runLength(roles, at);
    if (length == 0) {
      repaired.push_back(text[at++]);
      continue;
    }
    std::u32string run = text.substr(at, length);
    at += length;
    // The whole text has been tried.
    if (length < text.size() && looksLikeMojibake(run)) run = repairMojibake(std::move(run));
    repaired += run;
  }
  return repaired;
}

std::u32string repairOnce(const std::u32string& text) {
  if (isAscii(text) || !looksLikeMojibake(text)) return text;
  if (auto reread = rereadWhole(text)) return *reread;
  std::u32string repaired = repairRuns(text);
  return repaired != text ? repaired : replaceC1Controls(text);
}

}  // namespace

std::u32string repairMojibake(std::u32string text) {
  // Ends: rereading and repairing runs shorten the text, and what they leave has no C1 controls after one more round.
  while (true) {
    std::u32string repaired = repairOnce(text);
    if (repaired == text) return text;
    text = std::move(repaired);
  }
}

std::u32string replaceC1Controls(std::u32string text) {
  for (char32_t& c : text) {
    if (c >= 0x80 && c <= 0x9F) c = windows1252At(static_cast<uint8_t>(c));
  }
  return text;
}

}  // namespace latentd::stages
