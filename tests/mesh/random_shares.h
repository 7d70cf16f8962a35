#pragma once

#include <cstdint>

#include "tests/mesh/ranks.h"

namespace latentd::mesh::testing {

struct RandomShares {
  int rounds = 0;
  int64_t rows = 0, head_dim = 0;  // of the smallest share; others have twice as much
};

// A rank of requireTopologies() whose setup is a seed: in each topology, direct writes of shares of any shape, dtype
// and strides give, bit for bit, what the all-to-all gives, and count as many bytes as the formula.
void scatterRandomShares(ChildRank& rank, const RandomShares& shares);

}  // namespace latentd::mesh::testing
