#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "runtime/base/status.h"
#include "stages/option_table.h"
#include "stages/text/prompt_clean.h"

namespace latentd::stages {

// The `options:` of a group whose stage is "wan.text_encoder".
struct TextEncoderOptions {
  PromptCleaning prompt_cleaning = PromptCleaning::kFtfy;  // prompt_cleaning: "ftfy" or "basic"
  // prompt_bytes_max: of a prompt and of a negative prompt. 512 tokens, where the reference cuts, are some 2,500 bytes
  // of English or Chinese; this leaves room for markup and for texts that will be cut.
  uint32_t prompt_bytes_max = 16384;
  // negative_cache: embeddings of negative prompts kept, as nearly all jobs have one of a few. Of 4 MiB each with the
  // published models (512 x 4096, bfloat16).
  size_t negative_cache = 8;
};

OptionTable<TextEncoderOptions> textEncoderOptionTable();

// INVALID_ARGUMENT names the key, the value and what is valid.
StatusOr<TextEncoderOptions> parseTextEncoderOptions(const std::map<std::string, std::string>& options);

}  // namespace latentd::stages
