#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace latentd::stages {

// What a tokenizer.json says beside the pieces that its spiece.model has too. A value type.
struct TokenizerRules {
  struct AddedToken {
    std::string content;
    int64_t id = 0;
  };

  // Found in a text as they are, before anything else.
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> pieces;  // by id
  int64_t unknown_id = 0;
  int64_t end_id = 0;  // appended to every text
  bool byte_fallback = false;
};

// Reads and checks the file: a Unigram model, words marked with "▁" in front, "</s>" at the end. INVALID_ARGUMENT and
// UNIMPLEMENTED name the key, what it holds and what was expected.
StatusOr<TokenizerRules> readTokenizerRules(const std::string& path);

}  // namespace latentd::stages
