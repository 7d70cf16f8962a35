#pragma once

#include <cstdint>
#include <random>

namespace latentd::channel::testing {

// Any of least to most.
inline int64_t draw(std::mt19937& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

}  // namespace latentd::channel::testing
