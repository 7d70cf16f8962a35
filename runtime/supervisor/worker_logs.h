#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "runtime/base/log.h"

namespace latentd::supervisor {

// What one worker process printed: each line goes to the daemon's log under the worker's name, and the last ones are
// kept for the message of its death.
// Owner: whoever reads the worker's pipe, one a process. Thread: the supervisor's loop.
class WorkerLogs {
 public:
  explicit WorkerLogs(Logger logger) : logger_(std::move(logger)) {}

  void append(std::string_view bytes);
  // The process ended: what has no newline is a line too.
  void finish();
  const std::deque<std::string>& lastLines() const { return last_; }

 private:
  void line(std::string_view text);

  Logger logger_;
  std::string partial_;
  bool cut_ = false;  // the line in progress is beyond the bound; its rest is dropped
  std::deque<std::string> last_;
};

// A line of our own log format: its level, and the line without time, level and process, which the daemon adds again.
// Anything else (a library's message) is information as it is.
struct LogLine {
  spdlog::level::level_enum level = spdlog::level::info;
  std::string_view text;
};
LogLine parseLogLine(std::string_view line);

}  // namespace latentd::supervisor
