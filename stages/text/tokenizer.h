#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "stages/text/sentencepiece_model.h"
#include "stages/text/tokenizer_rules.h"

namespace latentd::stages {

// Text to token ids as a checkpoint's tokenizer.json has it, from that file and spiece.model beside it: added tokens
// are found first, each part between them starts a new word, characters outside the vocabulary are one unknown id a
// run (byte pieces where model.byte_fallback says so), "</s>" ends every text.
// Owner: the text encoder. Thread: any, immutable once loaded. Failure: load() names the file and what is wrong with
// it.
class Tokenizer {
 public:
  // A checkpoint's tokenizer/ folder.
  static StatusOr<Tokenizer> load(const std::string& directory);

  // At most `length_max` ids (1 or more); of a longer text the first ones, and then "</s>".
  StatusOr<std::vector<int64_t>> encode(std::string_view text, size_t length_max) const;
  // One more than the highest id that encode() can return.
  int64_t idsEnd() const { return ids_end_; }

 private:
  Tokenizer() = default;
  // The longest added token that `text` begins with; null if there is none.
  const TokenizerRules::AddedToken* addedTokenAt(std::string_view text) const;
  Status encodePart(std::string_view part, std::vector<int64_t>& ids) const;

  SentencePieceModel model_;
  std::vector<TokenizerRules::AddedToken> added_tokens_;  // longest first
  std::bitset<256> added_first_bytes_;
  int64_t unknown_id_ = 0;
  int64_t end_id_ = 0;
  int64_t ids_end_ = 0;
};

}  // namespace latentd::stages
