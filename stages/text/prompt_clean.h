#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace latentd::stages {

// How a prompt is cleaned before it is tokenized. The reference pipeline mends text with ftfy where that is installed,
// which published environments have; without it, it only resolves character references and spaces.
enum class PromptCleaning { kFtfy, kBasic };

// "ftfy" or "basic".
std::optional<PromptCleaning> parsePromptCleaning(std::string_view name);

// Whether a text can be a prompt: UTF-8, no NUL, at most bytes_max. INVALID_ARGUMENT says what is wrong and where.
// `field` names it in the message.
Status checkPrompt(std::string_view prompt, std::string_view field, size_t bytes_max);

// The cleaned prompt. Mending (kFtfy), character references resolved twice as a browser does, every run of space one
// plain space, none at the ends. INVALID_ARGUMENT if it is not UTF-8.
StatusOr<std::string> cleanPrompt(std::string_view prompt, PromptCleaning cleaning);

}  // namespace latentd::stages
