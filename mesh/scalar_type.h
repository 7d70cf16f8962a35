#pragma once

#include <c10/core/ScalarType.h>

#include "runtime/base/dtype.h"

namespace latentd {

// torch's name of an element type; Undefined for kInvalid.
constexpr at::ScalarType toScalarType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kInt64:
      return at::kLong;
    case DType::kInt32:
      return at::kInt;
    case DType::kUInt8:
      return at::kByte;
    case DType::kBool:
      return at::kBool;
    case DType::kInvalid:
      return at::ScalarType::Undefined;
  }
  return at::ScalarType::Undefined;
}

// The wire's name of torch's element type; kInvalid for those that no edge carries.
constexpr DType toDType(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kDouble:
      return DType::kFloat64;
    case at::kLong:
      return DType::kInt64;
    case at::kInt:
      return DType::kInt32;
    case at::kByte:
      return DType::kUInt8;
    case at::kBool:
      return DType::kBool;
    default:
      return DType::kInvalid;
  }
}

}  // namespace latentd
