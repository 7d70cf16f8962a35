#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace latentd::testing {

// A child process that runs one hidden test case of this very binary: the other side of a multi-process test, without
// a second executable to ship. Descriptors arrive as 3, 4, ... in the order given. Killed and reaped at the end. What
// Catch reports of it is shown where it fails, or does not end in time.
// Thread: one.
class ChildTestCase {
 public:
  // `name` is a TEST_CASE of this binary tagged [.]; letters, digits and blanks only.
  explicit ChildTestCase(const std::string& name, const std::vector<int>& fds = {});
  ChildTestCase(const ChildTestCase&) = delete;
  ChildTestCase& operator=(const ChildTestCase&) = delete;
  ~ChildTestCase();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // The exit code, or 128 + signal; nothing when it still runs at the deadline.
  std::optional<int> wait(std::chrono::milliseconds deadline);

 private:
  void showReport(const char* why) const;

  const std::string name_;
  UniqueFd report_;  // its standard output
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<int> code_;
};

}  // namespace latentd::testing
