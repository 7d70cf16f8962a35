#include "stages/text/text_repair.h"

#include <algorithm>
#include <string_view>

#include "stages/text/html_entities.h"
#include "stages/text/mojibake.h"
#include "stages/text/unicode_text.h"

namespace latentd::stages {
namespace {

constexpr char32_t kLongS = 0x17F;
constexpr char32_t kLigatureLongSt = 0xFB05;
constexpr char32_t kIdeographicSpace = 0x3000;
constexpr char32_t kEscape = 0x1B;

bool isIn(char32_t c, char32_t low, char32_t high) { return c >= low && c <= high; }

// Letters that join two Latin letters for typography or an old charset; not those which a language counts as one (æ).
bool isLigature(char32_t c) {
  return c == 0x132 || c == 0x133 || c == 0x149 || isIn(c, 0x1C4, 0x1CC) || isIn(c, 0x1F1, 0x1F3) ||
         isIn(c, 0xFB00, 0xFB06);
}

bool isWidthForm(char32_t c) { return c == kIdeographicSpace || isIn(c, 0xFF01, 0xFFEF); }

// Ligatures and width forms, taken apart by Unicode's own compatibility mappings.
std::u32string expandCompatibilityForms(const std::u32string& text) {
  std::u32string expanded;
  expanded.reserve(text.size());
  for (char32_t c : text) {
    if (c == kLigatureLongSt) {
      // The mapping would replace the long s too.
      expanded += {kLongS, U't'};
    } else if (isLigature(c) || isWidthForm(c)) {
      expanded += normalize({&c, 1}, NormalForm::kCompatibilityComposed);
    } else {
      expanded.push_back(c);
    }
  }
  return expanded;
}

void straightenQuotes(std::u32string& text) {
  for (char32_t& c : text) {
    if (c == 0x2BC || isIn(c, 0x2018, 0x201B)) c = U'\'';
    if (isIn(c, 0x201C, 0x201F)) c = U'"';
  }
}

std::u32string unifyLineBreaks(const std::u32string& text) {
  std::u32string unified;
  unified.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    const bool pair = c == U'\r' && i + 1 < text.size() && text[i + 1] == U'\n';
    if (pair) continue;
    unified.push_back(c == U'\r' || c == 0x2028 || c == 0x2029 || c == 0x85 ? U'\n' : c);
  }
  return unified;
}

// Characters of a colour or cursor command of a terminal at the start of `text`: ESC [ numbers letter.
size_t terminalEscape(std::u32string_view text) {
  if (text.size() < 3 || text[0] != kEscape || text[1] != U'[') return 0;
  size_t end = 2;
  while (end < text.size() && (text[end] == U';' || isDecimalDigit(text[end])))
    ++end;
  if (end == text.size()) return 0;
  return isIn(text[end], U'a', U'z') || isIn(text[end], U'A', U'Z') ? end + 1 : 0;
}

std::u32string removeTerminalEscapes(const std::u32string& text) {
  if (text.find(kEscape) == std::u32string::npos) return text;
  std::u32string kept;
  for (std::u32string_view rest = text; !rest.empty();) {
    const size_t length = terminalEscape(rest);
    if (length == 0) kept.push_back(rest.front());
    rest.remove_prefix(std::max<size_t>(length, 1));
  }
  return kept;
}

// Control characters without an effect on the text: of ASCII (not the spaces among them), the deprecated ones of
// Arabic, annotation marks and the object replacement, the byte order mark.
bool isInvisibleControl(char32_t c) {
  return c <= 0x8 || c == 0xB || isIn(c, 0xE, 0x1F) || c == 0x7F || isIn(c, 0x206A, 0x206F) || c == 0xFEFF ||
         isIn(c, 0xFFF9, 0xFFFC);
}

std::u32string repairOnce(std::u32string text, bool unescape) {
  if (unescape) text = unescapeCertainHtml(text);
  text = replaceC1Controls(repairMojibake(std::move(text)));
  text = expandCompatibilityForms(text);
  straightenQuotes(text);
  text = removeTerminalEscapes(unifyLineBreaks(text));
  std::erase_if(text, isInvisibleControl);
  return normalize(text, NormalForm::kComposed);
}

std::u32string repairLine(std::u32string line, bool unescape) {
  // Ends: a step shortens the line, or replaces characters by ones that no step replaces.
  while (true) {
    std::u32string repaired = repairOnce(line, unescape);
    if (repaired == line) return line;
    line = std::move(repaired);
  }
}

}  // namespace

std::u32string repairText(const std::u32string& text) {
  std::u32string repaired;
  bool unescape = true;
  for (size_t begin = 0; begin < text.size();) {
    const size_t line_feed = text.find(U'\n', begin);
    const size_t end = line_feed == std::u32string::npos ? text.size() : line_feed + 1;
    std::u32string line = text.substr(begin, end - begin);
    unescape = unescape && line.find(U'<') == std::u32string::npos;
    repaired += repairLine(std::move(line), unescape);
    begin = end;
  }
  return repaired;
}

}  // namespace latentd::stages
