#include "stages/text/text_encoder_options.h"

#include <optional>

namespace latentd::stages {
namespace {

using Options = TextEncoderOptions;

// Queued and finished jobs keep their prompts, so that this bounds memory too.
constexpr int64_t kPromptBytesMax = 65536;
constexpr int64_t kNegativeCacheMax = 64;

}  // namespace

OptionTable<TextEncoderOptions> textEncoderOptionTable() {
  return {
      integerOption("negative_cache", &Options::negative_cache, 0, kNegativeCacheMax, "8",
                    "Embeddings of negative prompts that are kept."),
      integerOption("prompt_bytes_max", &Options::prompt_bytes_max, 1, kPromptBytesMax, "16384",
                    "UTF-8 bytes of a prompt, and of a negative prompt."),
      {{"prompt_cleaning", "ftfy or basic", "ftfy", "ftfy repairs damaged text as the reference does."},
       [](Options& options, const std::string& text) {
         const std::optional<PromptCleaning> cleaning = parsePromptCleaning(text);
         options.prompt_cleaning = cleaning.value_or(options.prompt_cleaning);
         return cleaning.has_value();
       }},
  };
}

StatusOr<TextEncoderOptions> parseTextEncoderOptions(const std::map<std::string, std::string>& options) {
  return parseOptions("wan.text_encoder", textEncoderOptionTable(), options);
}

}  // namespace latentd::stages
