#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/unix_socket.h"
#include "tests/support/child_test_case.h"

namespace latentd::testing {

// Child processes of a test, each a hidden test case of this very binary, and a message pipe to each. Every wait has a
// deadline; what still runs is killed and reaped at the end. Thread: one.
class PeerGroup {
 public:
  // Starts one more child. Its first message is `setup`; more descriptors become its 4, 5, ...
  size_t start(const std::string& test_case, const std::string& setup, const std::vector<int>& more_fds = {});

  void send(size_t child, const std::string& text);
  // The child's next message; nothing if it died or said nothing in time.
  std::optional<std::string> next(size_t child);
  void signal(size_t child, int number);
  // Lets the child die at once and reaps it.
  void kill(size_t child);
  // Exit code; nothing if it still runs at the deadline.
  std::optional<int> wait(size_t child);

 private:
  struct Child {
    UnixSocket socket;
    std::unique_ptr<ChildTestCase> process;
  };
  std::vector<Child> children_;
};

// The child's end: descriptor 3.
class ParentPipe {
 public:
  ParentPipe();
  void send(const std::string& text);
  // The parent's next message; the process ends if the parent died or said nothing in time.
  std::string next();

 private:
  UnixSocket socket_;
};

}  // namespace latentd::testing
