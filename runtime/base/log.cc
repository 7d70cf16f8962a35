#include "runtime/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <unistd.h>

#include <iterator>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/base/log_sink.h"
#include "runtime/base/utf8.h"

namespace latentd {
namespace {

// A message in one line, whatever a worker or a library printed; %v would pass it on as it is.
class MessageFlag final : public spdlog::custom_flag_formatter {
 public:
  explicit MessageFlag(bool json) : json_(json) {}

  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string_view rest(message.payload.data(), message.payload.size());
    while (const std::optional<size_t> invalid = firstInvalidUtf8(rest)) {
      appendValid(rest.substr(0, *invalid), out);
      out.append(kReplacement);
      rest.remove_prefix(*invalid + 1);
    }
    appendValid(rest, out);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<MessageFlag>(json_); }

 private:
  static constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

  void appendValid(std::string_view text, spdlog::memory_buf_t& out) const {
    for (const char c : text)
      json_ ? appendJson(c, out) : appendText(c, out);
  }

  static void appendJson(char c, spdlog::memory_buf_t& out) {
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

  static void appendText(char c, spdlog::memory_buf_t& out) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n') {
      fmt::format_to(std::back_inserter(out), " | ");
    } else if (c == '\t') {
      out.push_back(' ');
    } else if (code < 0x20 || code == 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", code);  // terminals would obey
    } else {
      out.push_back(c);
    }
  }

  const bool json_;
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

std::unique_ptr<spdlog::formatter> makeLogFormatter(const LogOptions& options) {
  const std::string process = escapeForPattern(options.process);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<MessageFlag>('*', options.json);
  if (options.json) {
    formatter->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","process":")" + process +
                           R"(","component":"%n","message":"%*"})");
  } else {
    formatter->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + process + " %n: %*");
  }
  return formatter;
}

Status initLogging(const LogOptions& options) {
  const spdlog::level::level_enum level = spdlog::level::from_str(options.level);
  if (level == spdlog::level::off && options.level != "off") {
    return absl::InvalidArgumentError("log level \"" + options.level + "\" is none of trace, debug, info, warn, error");
  }
  auto sink = std::make_shared<LogSink>(STDERR_FILENO);
  auto logger = std::make_shared<spdlog::logger>("main", sink);
  spdlog::set_default_logger(logger);
  spdlog::set_formatter(makeLogFormatter(options));
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
