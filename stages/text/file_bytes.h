#pragma once

#include <string>

#include "runtime/base/status.h"

namespace latentd::stages {

// The whole of a tokenizer's file. Fails with the path: NOT_FOUND, or INVALID_ARGUMENT where it is too large to be one.
StatusOr<std::string> readFileBytes(const std::string& path);

}  // namespace latentd::stages
