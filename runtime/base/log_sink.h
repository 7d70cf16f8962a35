#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>

#include <spdlog/sinks/base_sink.h>

#include "runtime/base/unique_fd.h"

namespace latentd {

// The log on a descriptor, which never holds up who logs: nobody need read a pipe or a terminal for long, and the loop
// of a daemon has other things to do. What cannot be written is dropped, and told once it can again.
// Owner: spdlog's loggers. Thread: any. States: flowing <-> stalled. Failure: lines are lost, and counted.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // How long a line waits for a reader that is slow; those after it do not wait, until the reader goes on.
  static constexpr std::chrono::milliseconds kPatience{100};

  // A descriptor that stays open: another program's flags on it are left as they are.
  explicit LogSink(int fd);

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

  bool writable();
  bool write(std::string_view line);
  bool tellDropped();

  UniqueFd fd_;
  bool stalled_ = false;
  bool cut_ = false;  // in the middle of a line
  uint64_t dropped_ = 0;
};

}  // namespace latentd
