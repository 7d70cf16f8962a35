#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tests/stages/golden.h"

namespace latentd::stages::testing {

// A prompt of golden/MODEL/prompts.json and what the reference makes of it.
struct PromptCase {
  std::string name;
  std::string prompt;
  std::string clean;
  std::string clean_without_ftfy;
};

// Of the models that the set has.
std::vector<std::string> textModels(const Oracle& oracle);
std::vector<PromptCase> readPrompts(const Oracle& oracle, const std::string& model);
// The one with this name; a missing one fails the test.
PromptCase promptNamed(const std::vector<PromptCase>& prompts, const std::string& name);

// Whether the message of a failure has the text in it.
bool mentions(const Status& status, const std::string& text);

}  // namespace latentd::stages::testing
