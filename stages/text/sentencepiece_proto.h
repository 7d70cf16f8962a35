#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace latentd::stages {

// What a sentencepiece model file says that its library does not tell or let one change. `error` is empty if the file
// is well formed. Free of abseil, whose string_view clashes with that of the library's header.
struct SentencePieceFacts {
  std::string error;
  bool unigram = false;
  bool byte_fallback = false;
  std::vector<std::string> pieces;  // by id
};
SentencePieceFacts inspectSentencePiece(const std::string& model);

// The same model with its byte pieces ("<0x41>") made ordinary ones and the fallback to them off: an unknown run is one
// <unk>, and the literal text "<0x41>" is a piece. The model must be well formed.
std::string withoutByteFallback(std::string model);

}  // namespace latentd::stages
