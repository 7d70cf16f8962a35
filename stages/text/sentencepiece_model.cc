#include "stages/text/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <exception>

namespace latentd::stages {

SentencePieceModel::SentencePieceModel() : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {}
SentencePieceModel::~SentencePieceModel() = default;
SentencePieceModel::SentencePieceModel(SentencePieceModel&&) noexcept = default;
SentencePieceModel& SentencePieceModel::operator=(SentencePieceModel&&) noexcept = default;

std::string SentencePieceModel::load(const std::string& model) {
  try {
    const auto status = processor_->LoadFromSerializedProto(model);
    return status.ok() ? "" : status.ToString();
  } catch (const std::exception& error) {
    return error.what();
  }
}

int64_t SentencePieceModel::unknownId() const { return processor_->unk_id(); }

std::string SentencePieceModel::encode(std::string_view text, std::vector<int64_t>& ids) const {
  try {
    std::vector<int> pieces;
    const auto status = processor_->Encode(text, &pieces);
    if (!status.ok()) return status.ToString();
    ids.insert(ids.end(), pieces.begin(), pieces.end());
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace latentd::stages
