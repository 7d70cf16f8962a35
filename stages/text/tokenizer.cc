#include "stages/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stages/text/file_bytes.h"
#include "stages/text/sentencepiece_proto.h"

namespace latentd::stages {
namespace {

// The ids of both files must mean the same pieces; those that only tokenizer.json has are added tokens.
Status checkSamePieces(const std::string& directory, const std::vector<std::string>& json_pieces,
                       const std::vector<std::string>& model_pieces) {
  if (json_pieces.size() < model_pieces.size()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tokenizer.json has {} pieces, spiece.model {}; expected both of "
                    "one tokenizer",
                    directory, json_pieces.size(), model_pieces.size()));
  }
  const auto [in_model, in_json] = std::mismatch(model_pieces.begin(), model_pieces.end(), json_pieces.begin());
  if (in_model == model_pieces.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: id {} is \"{}\" in tokenizer.json and \"{}\" in spiece.model; expected both of one tokenizer",
                  directory, in_model - model_pieces.begin(), *in_json, *in_model));
}

StatusOr<SentencePieceModel> loadModel(const std::string& path, const std::string& directory,
                                       const TokenizerRules& rules) {
  LATENTD_ASSIGN_OR_RETURN(std::string bytes, readFileBytes(path));
  const SentencePieceFacts facts = inspectSentencePiece(bytes);
  if (!facts.error.empty()) return absl::InvalidArgumentError(fmt::format("{}: {}", path, facts.error));
  if (!facts.unigram) return absl::UnimplementedError(path + ": its model is not of the kind unigram");
  LATENTD_RETURN_IF_ERROR(checkSamePieces(directory, rules.pieces, facts.pieces));
  if (facts.byte_fallback && !rules.byte_fallback) bytes = withoutByteFallback(std::move(bytes));
  SentencePieceModel model;
  const std::string error = model.load(bytes);
  if (!error.empty()) return absl::InvalidArgumentError(fmt::format("{}: {}", path, error));
  return model;
}

}  // namespace

StatusOr<Tokenizer> Tokenizer::load(const std::string& directory) {
  LATENTD_ASSIGN_OR_RETURN(TokenizerRules rules, readTokenizerRules(directory + "/tokenizer.json"));
  Tokenizer tokenizer;
  LATENTD_ASSIGN_OR_RETURN(tokenizer.model_, loadModel(directory + "/spiece.model", directory, rules));
  tokenizer.unknown_id_ = rules.unknown_id;
  tokenizer.end_id_ = rules.end_id;
  tokenizer.added_tokens_ = std::move(rules.added_tokens);
  std::stable_sort(tokenizer.added_tokens_.begin(), tokenizer.added_tokens_.end(),
                   [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
  tokenizer.ids_end_ = std::max(static_cast<int64_t>(rules.pieces.size()), rules.end_id + 1);
  for (const auto& token : tokenizer.added_tokens_) {
    tokenizer.added_first_bytes_.set(static_cast<uint8_t>(token.content.front()));
    tokenizer.ids_end_ = std::max(tokenizer.ids_end_, token.id + 1);
  }
  return tokenizer;
}

const TokenizerRules::AddedToken* Tokenizer::addedTokenAt(std::string_view text) const {
  if (!added_first_bytes_.test(static_cast<uint8_t>(text.front()))) return nullptr;
  const auto found = std::find_if(added_tokens_.begin(), added_tokens_.end(),
                                  [text](const auto& token) { return text.starts_with(token.content); });
  return found == added_tokens_.end() ? nullptr : &*found;
}

Status Tokenizer::encodePart(std::string_view part, std::vector<int64_t>& ids) const {
  const size_t begin = ids.size();
  const std::string error = model_.encode(part, ids);
  if (!error.empty()) return absl::InternalError("sentencepiece: " + error);
  std::replace(ids.begin() + static_cast<ptrdiff_t>(begin), ids.end(), model_.unknownId(), unknown_id_);
  return absl::OkStatus();
}

StatusOr<std::vector<int64_t>> Tokenizer::encode(std::string_view text, size_t length_max) const {
  std::vector<int64_t> ids;
  size_t part_begin = 0;
  for (size_t at = 0; at < text.size();) {
    const TokenizerRules::AddedToken* token = addedTokenAt(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    LATENTD_RETURN_IF_ERROR(encodePart(text.substr(part_begin, at - part_begin), ids));
    ids.push_back(token->id);
    at += token->content.size();
    part_begin = at;
  }
  LATENTD_RETURN_IF_ERROR(encodePart(text.substr(part_begin), ids));
  ids.resize(std::min(ids.size(), length_max - 1));
  ids.push_back(end_id_);
  return ids;
}

}  // namespace latentd::stages
