#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tools/ctl/client.h"

namespace latentd::ctl {

// The flags of `submit`; absent ones are the model's defaults.
struct SubmitOptions {
  std::optional<std::string> prompt;       // "-": standard input; this or prompt_file
  std::optional<std::string> prompt_file;  // "-" as well
  std::optional<std::string> negative_prompt;
  std::optional<uint32_t> frames;
  std::string size;  // "WxH"
  std::optional<uint32_t> steps;
  std::optional<double> guidance;
  std::optional<uint64_t> seed;
  std::optional<double> fps;
  std::optional<double> flow_shift;
  int32_t priority = 0;
  bool retry = false;
  std::optional<std::chrono::milliseconds> deadline;
  std::optional<std::chrono::milliseconds> stall_timeout;
  std::string format;
  bool float_pixels = false;
  std::string output;  // empty: ID.FORMAT in the current folder
  bool detach = false;
  bool quiet = false;
};

// Submits, follows and downloads. Ctrl-C cancels the job; a second one does not wait for its end.
ExitCode runSubmit(const GlobalOptions& global, const SubmitOptions& options);

}  // namespace latentd::ctl
