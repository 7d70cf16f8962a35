#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace latentd::stages {

// The `options:` of a group whose stage is "noop". Numbers are decimal; times are milliseconds.
struct NoopOptions {
  uint64_t bytes = 65536;                  // bytes: of one output, all leaves together, rounded down to whole elements
  uint64_t bytes_per_frame = 0;            // bytes_per_frame: added to bytes for each frame of the job
  uint32_t leaves = 1;                     // leaves: tensors in one output
  DType dtype = DType::kFloat32;           // dtype: default is the group's
  uint32_t steps = 1;                      // steps: per run; 0 takes the job's
  std::chrono::milliseconds step_time{0};  // step_ms: processor time that a step burns
  std::chrono::milliseconds load_time{0};  // load_ms: same for load(), with progress
  std::chrono::milliseconds warm_up_time{0};       // warm_up_ms
  uint32_t frames = 0;                             // frames: what sink emits; 0 takes the job's
  uint64_t weight_bytes = 0;                       // weight_bytes: memory that load() takes and keeps
  std::vector<std::string> input_keys{"payload"};  // input_keys: what relay and sink need, separated by commas
  std::string output_key = "payload";              // output_key: what source and relay return
  // Faults. -1 means never.
  int64_t fail_at_step = -1;    // fail_at_step: INTERNAL
  int64_t crash_at_step = -1;   // crash_at_step: SIGSEGV
  uint64_t allocate_bytes = 0;  // allocate_bytes: taken and touched in step 0, given back at the end of the run
  std::string only_prompt;      // only_prompt: faults and allocation hit only jobs whose prompt contains this
  bool fail_load = false;       // fail_load: load() ends in FAILED_PRECONDITION
};

// INVALID_ARGUMENT names the key, the value and what is valid.
StatusOr<NoopOptions> parseNoopOptions(const std::map<std::string, std::string>& options, DType group_dtype);

}  // namespace latentd::stages
