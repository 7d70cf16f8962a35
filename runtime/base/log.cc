#include "runtime/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <mutex>

namespace latentd {
namespace {

// %v is the message as it is; JSON needs it escaped.
class JsonMessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    for (const char c : message.payload)
      appendEscaped(c, out);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessageFlag>(); }

 private:
  static void appendEscaped(char c, spdlog::memory_buf_t& out) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (code < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    } else {
      out.push_back(c);
    }
  }
};

std::string escapeForPattern(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '%') escaped.push_back('%');
    escaped.push_back(c);
  }
  return escaped;
}

}  // namespace

Status initLogging(const LogOptions& options) {
  const spdlog::level::level_enum level = spdlog::level::from_str(options.level);
  if (level == spdlog::level::off && options.level != "off") {
    return absl::InvalidArgumentError("log level \"" + options.level + "\" is none of trace, debug, info, warn, error");
  }
  const std::string process = escapeForPattern(options.process);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (options.json) {
    formatter->add_flag<JsonMessageFlag>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","process":")" + process +
        R"(","component":"%n","message":"%*"})");
  } else {
    formatter->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + process + " %n: %v");
  }
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("main", sink);
  spdlog::set_default_logger(logger);
  spdlog::set_formatter(std::move(formatter));
  spdlog::set_level(level);
  spdlog::flush_on(spdlog::level::trace);
  return absl::OkStatus();
}

Logger getLogger(std::string_view component) {
  static std::mutex creation;
  const std::lock_guard<std::mutex> held(creation);
  const std::string name(component);
  if (Logger existing = spdlog::get(name)) return existing;
  Logger logger = spdlog::default_logger()->clone(name);
  spdlog::register_logger(logger);
  return logger;
}

}  // namespace latentd
