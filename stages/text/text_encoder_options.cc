#include "stages/text/text_encoder_options.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace latentd::stages {
namespace {

// Queued and finished jobs keep their prompts, so that this bounds memory too.
constexpr uint32_t kPromptBytesMax = 65536;
constexpr uint32_t kNegativeCacheMax = 64;

StatusOr<uint32_t> parseCount(const std::string& name, const std::string& text, uint32_t low, uint32_t high) {
  uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= low && value <= high) return value;
  return absl::InvalidArgumentError(
      fmt::format("option {}: \"{}\" is not an integer from {} to {}", name, text, low, high));
}

}  // namespace

StatusOr<TextEncoderOptions> parseTextEncoderOptions(const std::map<std::string, std::string>& options) {
  TextEncoderOptions parsed;
  for (const auto& [name, text] : options) {
    if (name == "prompt_cleaning") {
      const std::optional<PromptCleaning> cleaning = parsePromptCleaning(text);
      if (!cleaning.has_value()) {
        return absl::InvalidArgumentError(fmt::format("option {}: \"{}\" is not ftfy or basic", name, text));
      }
      parsed.prompt_cleaning = *cleaning;
    } else if (name == "prompt_bytes_max") {
      LATENTD_ASSIGN_OR_RETURN(parsed.prompt_bytes_max, parseCount(name, text, 1, kPromptBytesMax));
    } else if (name == "negative_cache") {
      LATENTD_ASSIGN_OR_RETURN(parsed.negative_cache, parseCount(name, text, 0, kNegativeCacheMax));
    } else {
      return absl::InvalidArgumentError(
          fmt::format("stage wan.text_encoder has no option \"{}\"; it has: negative_cache, prompt_bytes_max, "
                      "prompt_cleaning",
                      name));
    }
  }
  return parsed;
}

}  // namespace latentd::stages
