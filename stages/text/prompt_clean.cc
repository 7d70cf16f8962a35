#include "stages/text/prompt_clean.h"

#include <fmt/format.h>

#include "stages/text/html_entities.h"
#include "stages/text/text_repair.h"
#include "stages/text/unicode_text.h"

namespace latentd::stages {
namespace {

std::u32string collapseSpace(std::u32string_view text) {
  std::u32string collapsed;
  collapsed.reserve(text.size());
  bool in_space = false;
  for (char32_t c : text) {
    const bool space = isWhiteSpace(c);
    if (!space || !in_space) collapsed.push_back(space ? U' ' : c);
    in_space = space;
  }
  return collapsed;
}

}  // namespace

std::optional<PromptCleaning> parsePromptCleaning(std::string_view name) {
  if (name == "ftfy") return PromptCleaning::kFtfy;
  if (name == "basic") return PromptCleaning::kBasic;
  return std::nullopt;
}

Status checkPrompt(std::string_view prompt, std::string_view field, size_t bytes_max) {
  if (prompt.size() > bytes_max) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} bytes, expected at most {}", field, prompt.size(), bytes_max));
  }
  if (const size_t at = prompt.find('\0'); at != std::string_view::npos) {
    return absl::InvalidArgumentError(fmt::format("{} has a NUL at offset {}, expected text", field, at));
  }
  return annotate(decodeUtf8OrExplain(prompt).status(), field);
}

StatusOr<std::string> cleanPrompt(std::string_view prompt, PromptCleaning cleaning) {
  LATENTD_ASSIGN_OR_RETURN(std::u32string text, decodeUtf8OrExplain(prompt));
  if (cleaning == PromptCleaning::kFtfy) text = repairText(text);
  text = unescapeHtml(unescapeHtml(text));
  return encodeUtf8(stripSpace(collapseSpace(stripSpace(text))));
}

}  // namespace latentd::stages
