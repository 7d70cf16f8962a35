#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace latentd {

// Element types of tensors. The numbers go over the wire (proto/common.proto DType).
enum class DType : uint8_t {
  kInvalid = 0,
  kFloat32 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kFloat64 = 4,
  kInt64 = 5,
  kInt32 = 6,
  kUInt8 = 7,
  kBool = 8,
};

// Bytes of one element; 0 for kInvalid.
constexpr size_t byteSize(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kUInt8:
    case DType::kBool:
      return 1;
    case DType::kInvalid:
      return 0;
  }
  return 0;
}

// "float32", "bfloat16", ...: torch's names, used in YAML, logs and the API.
std::string_view toString(DType dtype);
std::optional<DType> parseDType(std::string_view name);

}  // namespace latentd
