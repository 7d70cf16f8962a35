#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/status.h"

namespace latentd::stages {

// The sizes of a UMT5 encoder, from text_encoder/config.json. A value type.
struct Umt5Config {
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  int64_t d_kv = 0;  // of one head
  int64_t d_ff = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t position_buckets = 0;       // of relative positions, both directions together
  int64_t position_distance_max = 0;  // beyond it all positions share a bucket
  double norm_epsilon = 0;
};

// INVALID_ARGUMENT names file, key, value and what was expected.
StatusOr<Umt5Config> readUmt5Config(const std::string& path);

}  // namespace latentd::stages
