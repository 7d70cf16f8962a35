#pragma once

#include <csignal>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/running_program.h"
#include "tests/support/self_path.h"

namespace latentd::testing {

// tests/support:fake_daemon as a process of its own, so that it can be stopped and killed.
class FakeDaemonProcess {
 public:
  explicit FakeDaemonProcess(int tick_ms = 5)
      : program_({builtBinary("tests/support/fake_daemon"), std::to_string(tick_ms)}) {
    const std::string announcement = "listening on ";
    REQUIRE(program_.waitForText("\n"));
    const std::string line = program_.output();
    REQUIRE(line.rfind(announcement, 0) == 0);
    endpoint_ = line.substr(announcement.size(), line.find('\n') - announcement.size());
  }

  const std::string& endpoint() const { return endpoint_; }
  void signal(int number) { program_.signal(number); }

 private:
  RunningProgram program_;
  std::string endpoint_;
};

}  // namespace latentd::testing
