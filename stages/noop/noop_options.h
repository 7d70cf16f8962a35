#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "stages/option_table.h"

namespace latentd::stages {

// The `options:` of a group whose stage is "noop". Meaning and range of each stand in its table.
struct NoopOptions {
  uint64_t bytes = 65536;
  uint64_t bytes_per_frame = 0;
  uint32_t leaves = 1;
  DType dtype = DType::kFloat32;
  uint32_t steps = 1;
  std::chrono::milliseconds step_time{0};
  uint64_t sum_bytes = 0;
  std::chrono::milliseconds load_time{0};
  std::chrono::milliseconds warm_up_time{0};
  uint32_t frames = 0;
  uint64_t weight_bytes = 0;
  std::vector<std::string> input_keys{"payload"};
  bool check = true;
  std::string output_key = "payload";
  // Faults; -1 means never.
  int64_t fail_at_step = -1;
  int64_t crash_at_step = -1;
  uint64_t allocate_bytes = 0;
  std::string only_prompt;
  int64_t only_rank = -1;
  bool fail_load = false;
};

OptionTable<NoopOptions> noopOptionTable();

// INVALID_ARGUMENT names the key, the value and what is valid.
StatusOr<NoopOptions> parseNoopOptions(const std::map<std::string, std::string>& options, DType group_dtype);

}  // namespace latentd::stages
