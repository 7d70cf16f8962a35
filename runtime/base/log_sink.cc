#include "runtime/base/log_sink.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

namespace latentd {
namespace {

// Pipes and terminals are opened anew, since O_NONBLOCK belongs to everybody who shares an opening. Files never block.
UniqueFd ownOpening(int fd) {
  struct stat about {};
  if (::fstat(fd, &about) == 0 && (S_ISFIFO(about.st_mode) || ::isatty(fd) == 1)) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    UniqueFd own(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (own.valid()) return own;
  }
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

}  // namespace

LogSink::LogSink(int fd) : fd_(ownOpening(fd)), formatter_(std::make_unique<spdlog::pattern_formatter>()) {}

void LogSink::set_pattern(const std::string& pattern) {
  set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern));
}

void LogSink::set_formatter(std::unique_ptr<spdlog::formatter> formatter) {
  const MutexLock held(mutex_);
  formatter_ = std::move(formatter);
}

void LogSink::log(const spdlog::details::log_msg& message) {
  const MutexLock held(mutex_);
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  if (!tellDropped() || !write({line.data(), line.size()})) ++dropped_;
}

bool LogSink::tellDropped() {
  if (dropped_ == 0) return true;
  const std::string text = std::to_string(dropped_) + " lines are missing here: they could not be written, since " +
                           "nobody read the log or its disk was full";
  spdlog::memory_buf_t line;
  formatter_->format({"log", spdlog::level::warn, text}, line);
  if (!write({line.data(), line.size()})) return false;
  dropped_ = 0;
  return true;
}

bool LogSink::writable() {
  pollfd entry{fd_.get(), POLLOUT, 0};
  const int wait = stalled_ ? 0 : static_cast<int>(kPatience.count());
  stalled_ = ::poll(&entry, 1, wait) != 1;
  return !stalled_;
}

bool LogSink::write(std::string_view line) {
  const std::string whole = (cut_ ? "\n" : "") + std::string(line);
  std::string_view rest = whole;
  while (!rest.empty()) {
    // What poll() calls writable takes this much at once, also where the descriptor itself may block.
    const ssize_t written = writable() ? ::write(fd_.get(), rest.data(), std::min<size_t>(rest.size(), PIPE_BUF)) : -1;
    if (written < 0 && !stalled_ && errno == EINTR) continue;
    if (written < 0) break;
    rest.remove_prefix(static_cast<size_t>(written));
  }
  if (rest.size() < whole.size()) cut_ = !rest.empty();
  return rest.empty();
}

}  // namespace latentd
