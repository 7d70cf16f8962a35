#include "runtime/supervisor/worker_logs.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "runtime/supervisor/limits.h"

namespace latentd::supervisor {
namespace {

// "2026-01-02 03:04:05.678 I denoise/0 stage: message" (runtime/base/log.cc): 0 is a digit, the rest stands for itself.
constexpr std::string_view kTimePattern = "0000-00-00 00:00:00.000 ";

bool startsWithTime(std::string_view line) {
  if (line.size() < kTimePattern.size()) return false;
  return std::equal(kTimePattern.begin(), kTimePattern.end(), line.begin(), [](char expected, char actual) {
    return expected == '0' ? std::isdigit(static_cast<unsigned char>(actual)) != 0 : expected == actual;
  });
}

std::optional<spdlog::level::level_enum> levelOf(char letter) {
  switch (letter) {
    case 'T':
      return spdlog::level::trace;
    case 'D':
      return spdlog::level::debug;
    case 'I':
      return spdlog::level::info;
    case 'W':
      return spdlog::level::warn;
    case 'E':
      return spdlog::level::err;
    case 'C':
      return spdlog::level::critical;
    default:
      return std::nullopt;
  }
}

}  // namespace

LogLine parseLogLine(std::string_view line) {
  const LogLine plain{spdlog::level::info, line};
  if (!startsWithTime(line)) return plain;
  std::string_view rest = line.substr(kTimePattern.size());
  if (rest.size() < 2 || rest[1] != ' ') return plain;
  const std::optional<spdlog::level::level_enum> level = levelOf(rest[0]);
  const size_t process_end = rest.find(' ', 2);
  if (!level || process_end == std::string_view::npos) return plain;
  return {*level, rest.substr(process_end + 1)};
}

void WorkerLogs::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, newline);
    if (!cut_) partial_.append(piece.substr(0, kLogLineBytesMax - partial_.size()));
    cut_ = partial_.size() == kLogLineBytesMax;
    if (newline == std::string_view::npos) return;
    finish();
    bytes.remove_prefix(newline + 1);
  }
}

void WorkerLogs::finish() {
  if (!partial_.empty()) line(partial_);
  partial_.clear();
  cut_ = false;
}

void WorkerLogs::line(std::string_view text) {
  const LogLine parsed = parseLogLine(text);
  logger_->log(parsed.level, "{}", parsed.text);
  last_.emplace_back(parsed.text);
  if (last_.size() > kLogLinesKept) last_.pop_front();
}

}  // namespace latentd::supervisor
