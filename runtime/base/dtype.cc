#include "runtime/base/dtype.h"

#include <array>
#include <utility>

namespace latentd {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 8> kNames{{
    {DType::kFloat32, "float32"},
    {DType::kFloat16, "float16"},
    {DType::kBFloat16, "bfloat16"},
    {DType::kFloat64, "float64"},
    {DType::kInt64, "int64"},
    {DType::kInt32, "int32"},
    {DType::kUInt8, "uint8"},
    {DType::kBool, "bool"},
}};

}  // namespace

std::string_view toString(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "invalid";
}

std::optional<DType> parseDType(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace latentd
