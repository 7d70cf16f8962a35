#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/fake_daemon_process.h"
#include "tests/support/running_program.h"
#include "tests/support/self_path.h"
#include "tests/support/temp_dir.h"

namespace latentd::testing {

struct CtlResult {
  int code = -1;
  std::string output;
  std::string error;

  nlohmann::json json() const { return nlohmann::json::parse(output); }
};

// The real latentctl against a daemon with scripted jobs, in an empty folder.
struct CtlFixture {
  FakeDaemonProcess daemon;
  const testing::TempDir temporary;
  const std::filesystem::path folder = temporary.path();

  explicit CtlFixture(int tick_ms = 5) : daemon(tick_ms) {}

  std::vector<std::string> command(std::vector<std::string> arguments) const {
    std::vector<std::string> all{builtBinary("tools/latentctl"), "--endpoint", daemon.endpoint()};
    all.insert(all.end(), std::make_move_iterator(arguments.begin()), std::make_move_iterator(arguments.end()));
    return all;
  }
  RunningProgram::Options options() const {
    RunningProgram::Options made;
    made.directory = folder.string();
    return made;
  }

  CtlResult run(std::vector<std::string> arguments, RunningProgram::Options how) const {
    if (how.directory.empty()) how.directory = folder.string();
    RunningProgram program(command(std::move(arguments)), std::move(how));
    const std::optional<int> code = program.wait();
    REQUIRE(code.has_value());
    return {*code, program.output(), program.error()};
  }
  CtlResult run(std::vector<std::string> arguments) const { return run(std::move(arguments), {}); }

  // Id of a job that was submitted and left alone.
  std::string leave(const std::string& prompt) const {
    const CtlResult result = run({"submit", "--prompt", prompt, "--steps", "4", "--detach"});
    REQUIRE(result.code == 0);
    return result.output.substr(0, result.output.find('\n'));
  }
  std::string state(const std::string& id) const { return run({"--json", "get", id}).json()["state"]; }
  bool becomes(const std::string& id, const std::string& wanted) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (state(id) != wanted) {
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }

  std::string read(const std::string& name) const {
    std::ifstream file(folder / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.push_back(entry.path().filename());
    return names;
  }
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace latentd::testing
