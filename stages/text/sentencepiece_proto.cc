#include "stages/text/sentencepiece_proto.h"

#include <optional>
#include <string_view>

namespace latentd::stages {
namespace {

// Field numbers and values of sentencepiece_model.proto.
constexpr uint32_t kModelPiece = 1;
constexpr uint32_t kModelTrainerSpec = 2;
constexpr uint32_t kPieceText = 1;
constexpr uint32_t kPieceType = 3;
constexpr uint64_t kTypeNormal = 1;
constexpr uint64_t kTypeByte = 6;
constexpr uint32_t kSpecModelType = 3;
constexpr uint64_t kModelTypeUnigram = 1;
constexpr uint32_t kSpecByteFallback = 35;

constexpr uint32_t kWireVarint = 0;
constexpr uint32_t kWireFixed64 = 1;
constexpr uint32_t kWireBytes = 2;
constexpr uint32_t kWireFixed32 = 5;

// One field of a message; begin and end delimit its payload (for a varint, its bytes) in the file.
struct Field {
  uint32_t number = 0;
  uint32_t wire = 0;
  uint64_t value = 0;  // of a varint
  size_t begin = 0;
  size_t end = 0;
};

std::optional<uint64_t> readVarint(std::string_view bytes, size_t& at, size_t end) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && at < end; shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes[at++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

// Reads the field at `at` and moves past it; absent where the bytes are not a field.
std::optional<Field> readField(std::string_view bytes, size_t& at, size_t end) {
  const auto tag = readVarint(bytes, at, end);
  if (!tag.has_value()) return std::nullopt;
  Field field{static_cast<uint32_t>(*tag >> 3), static_cast<uint32_t>(*tag & 7), 0, at, at};
  uint64_t size = 0;
  if (field.wire == kWireVarint) {
    const auto value = readVarint(bytes, at, end);
    if (!value.has_value()) return std::nullopt;
    field.value = *value;
    field.end = at;
    return field;
  }
  if (field.wire == kWireBytes) {
    const auto length = readVarint(bytes, at, end);
    if (!length.has_value()) return std::nullopt;
    size = *length;
    field.begin = at;
  } else if (field.wire == kWireFixed64) {
    size = 8;
  } else if (field.wire == kWireFixed32) {
    size = 4;
  } else {
    return std::nullopt;
  }
  if (size > end - at) return std::nullopt;
  at += size;
  field.end = at;
  return field;
}

// Calls visit(field) for each field of bytes[begin, end); false if they are malformed.
template <class Visit>
bool forEachField(std::string_view bytes, size_t begin, size_t end, Visit visit) {
  for (size_t at = begin; at < end;) {
    const auto field = readField(bytes, at, end);
    if (!field.has_value()) return false;
    visit(*field);
  }
  return true;
}

}  // namespace

SentencePieceFacts inspectSentencePiece(const std::string& model) {
  SentencePieceFacts facts;
  bool nested_ok = true;
  const bool ok = forEachField(model, 0, model.size(), [&](const Field& field) {
    if (field.wire != kWireBytes) return;
    if (field.number == kModelPiece) {
      std::string& piece = facts.pieces.emplace_back();
      nested_ok &= forEachField(model, field.begin, field.end, [&](const Field& part) {
        if (part.number == kPieceText) piece = model.substr(part.begin, part.end - part.begin);
      });
    } else if (field.number == kModelTrainerSpec) {
      // The kind of model is absent where it is the default.
      facts.unigram = true;
      nested_ok &= forEachField(model, field.begin, field.end, [&](const Field& part) {
        if (part.number == kSpecModelType) facts.unigram = part.value == kModelTypeUnigram;
        if (part.number == kSpecByteFallback) facts.byte_fallback = part.value != 0;
      });
    }
  });
  if (!ok || !nested_ok || facts.pieces.empty()) facts.error = "it is not a sentencepiece model, or is cut off";
  return facts;
}

std::string withoutByteFallback(std::string model) {
  const std::string original = model;
  // Both values are varints of one byte before and after, so nothing moves.
  forEachField(original, 0, original.size(), [&](const Field& field) {
    if (field.wire != kWireBytes) return;
    if (field.number != kModelPiece && field.number != kModelTrainerSpec) return;
    forEachField(original, field.begin, field.end, [&](const Field& part) {
      const bool piece = field.number == kModelPiece;
      if (piece && part.number == kPieceType && part.value == kTypeByte) {
        model[part.begin] = static_cast<char>(kTypeNormal);
      }
      if (!piece && part.number == kSpecByteFallback && part.value == 1) model[part.begin] = 0;
    });
  });
  return model;
}

}  // namespace latentd::stages
