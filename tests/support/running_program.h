#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace latentd::testing {

// A program as a person at a terminal runs it: its standard output and error apart, its input given, signals sent.
// Killed and reaped at the end. Thread: one.
class RunningProgram {
 public:
  struct Options {
    std::string input;                     // standard input
    std::vector<std::string> environment;  // "NAME=value", beside PATH
    std::string directory;                 // where it runs; empty: here
    bool terminal = false;                 // standard error is one
    bool closed_output = false;            // nobody reads standard output
  };

  RunningProgram(std::vector<std::string> command, Options options);
  explicit RunningProgram(std::vector<std::string> command) : RunningProgram(std::move(command), Options()) {}
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram();

  // False if neither output nor error showed the text by the deadline; then, and where wait() returns nothing, what it
  // said is shown.
  bool waitForText(const std::string& text, std::chrono::milliseconds timeout = std::chrono::seconds(60));
  void signal(int number) const;
  // The exit code, or 128 + signal; nothing when it still runs at the deadline.
  std::optional<int> wait(std::chrono::milliseconds timeout = std::chrono::seconds(90));

  // Whole once wait() has returned a code.
  std::string output();
  std::string error();
  pid_t pid() const { return pid_; }

 private:
  void collect(int fd, std::string* text);
  void showSaid(const std::string& awaited) REQUIRES(mutex_);

  const std::string name_;
  pid_t pid_ = -1;
  UniqueFd pid_fd_;
  UniqueFd output_fd_;
  UniqueFd error_fd_;
  std::optional<int> code_;
  Mutex mutex_;
  CondVar grown_;
  std::string output_ GUARDED_BY(mutex_);
  std::string error_ GUARDED_BY(mutex_);
  std::vector<std::thread> readers_;  // last: they use all of the above
};

}  // namespace latentd::testing
