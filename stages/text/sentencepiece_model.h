#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace latentd::stages {

// The sentencepiece library behind a header of our own: its header defines absl::string_view and cannot be seen by
// code that uses abseil, so errors are texts here, empty if all is well.
// Owner: the tokenizer. Thread: any, once loaded. States: empty -> load() succeeded. Failure: see above.
class SentencePieceModel {
 public:
  SentencePieceModel();
  ~SentencePieceModel();
  SentencePieceModel(SentencePieceModel&&) noexcept;
  SentencePieceModel& operator=(SentencePieceModel&&) noexcept;

  // The bytes of a model file.
  std::string load(const std::string& model);
  int64_t unknownId() const;
  // Appends the ids of the text's pieces.
  std::string encode(std::string_view text, std::vector<int64_t>& ids) const;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace latentd::stages
