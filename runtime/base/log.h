#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <spdlog/spdlog.h>

#include "runtime/base/status.h"

// One line per event: time, level, component, message. Levels: error = something is lost or needs a person, warn =
// handled and counted, info = life of a process or job, debug = per stage, trace = per slot.
namespace latentd {

using Logger = std::shared_ptr<spdlog::logger>;

struct LogOptions {
  std::string level = "info";  // trace, debug, info, warn, error
  bool json = false;           // one JSON object per line instead of text
  std::string process;         // prefix of every line: "latentd", "denoise/0", ...
};

// How a line is written: valid UTF-8 without control characters, whatever is logged. A line break in a message is " |
// ", or escaped in JSON.
std::unique_ptr<spdlog::formatter> makeLogFormatter(const LogOptions& options);

// Sets the sink and format of this process. Called once by a main before any thread starts.
Status initLogging(const LogOptions& options);

// The logger of one component ("supervisor", "channel", ...), created on first use. Thread: any.
Logger getLogger(std::string_view component);

}  // namespace latentd
