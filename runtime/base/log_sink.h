#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <spdlog/sinks/sink.h>

#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace latentd {

// The log on a descriptor, which never holds up who logs: nobody need read a pipe or a terminal for long, and the loop
// of a daemon has other things to do. What cannot be written is dropped, and told once it can again.
// Owner: spdlog's loggers. Thread: any. States: flowing <-> stalled. Failure: lines are lost, and counted.
class LogSink final : public spdlog::sinks::sink {
 public:
  // How long a line waits for a reader that is slow; those after it do not wait, until the reader goes on.
  static constexpr std::chrono::milliseconds kPatience{100};

  // A descriptor that stays open: another program's flags on it are left as they are.
  explicit LogSink(int fd);

  void log(const spdlog::details::log_msg& message) override EXCLUDES(mutex_);
  void flush() override {}
  void set_pattern(const std::string& pattern) override EXCLUDES(mutex_);
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override EXCLUDES(mutex_);

 private:
  bool writable() REQUIRES(mutex_);
  bool write(std::string_view line) REQUIRES(mutex_);
  bool tellDropped() REQUIRES(mutex_);

  const UniqueFd fd_;
  Mutex mutex_;
  std::unique_ptr<spdlog::formatter> formatter_ GUARDED_BY(mutex_);
  bool stalled_ GUARDED_BY(mutex_) = false;
  bool cut_ GUARDED_BY(mutex_) = false;  // in the middle of a line
  uint64_t dropped_ GUARDED_BY(mutex_) = 0;
};

}  // namespace latentd
