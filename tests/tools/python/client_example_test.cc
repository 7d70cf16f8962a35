#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fake_daemon_process.h"
#include "tests/support/running_program.h"
#include "tests/support/scripted_jobs.h"
#include "tests/support/self_path.h"
#include "tests/support/temp_dir.h"

namespace latentd::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPython{60};  // importing grpcio takes seconds on a busy machine

// The stubs as the example's heading says to make them, and the example run with them.
struct PythonFixture {
  FakeDaemonProcess daemon;
  fs::path root = fs::path(sourceFile("tools/python/client_example.py")).parent_path().parent_path().parent_path();
  const testing::TempDir temporary;
  const fs::path folder = temporary.path();

  PythonFixture() {
    if (!fs::exists(python())) FAIL("there is no .deps/venv/bin/python: run tools/setup");
    const std::string& name = temporary.path();
    RunningProgram::Options in_root;
    in_root.directory = root;
    RunningProgram protoc({python(), "-m", "grpc_tools.protoc", "-I.", "--python_out=" + name,
                           "--grpc_python_out=" + name, "proto/common.proto", "proto/api.proto"},
                          in_root);
    const std::optional<int> code = protoc.wait(kPython);
    CAPTURE(protoc.error());
    REQUIRE(code == 0);
  }

  std::string python() const { return root / ".deps" / "venv" / "bin" / "python"; }

  std::vector<std::string> command(std::vector<std::string> arguments) const {
    std::vector<std::string> all{python(), root / "tools" / "python" / "client_example.py", "--endpoint",
                                 daemon.endpoint()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  RunningProgram::Options options() const {
    RunningProgram::Options made;
    made.directory = folder;
    made.environment = {"PYTHONPATH=" + folder.string(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONFAULTHANDLER=1"};
    return made;
  }
};

// One that does not end is made to say where it stands: Python's fault handler writes its threads' stacks.
void requireExit(RunningProgram& program, int expected) {
  const std::optional<int> code = program.wait(kPython);
  if (!code) {
    program.signal(SIGABRT);
    program.wait(kPython);
  }
  INFO(program.error());
  REQUIRE(code == expected);
}

}  // namespace

TEST_CASE("python: the example submits, watches, downloads and cancels through grpcio", "[python]") {
  const PythonFixture fixture;
  {
    RunningProgram program(fixture.command({"a red circle", "circle.mp4", "--steps", "3"}), fixture.options());
    requireExit(program, 0);
    CHECK(program.output() == "circle.mp4\n");
    CHECK(program.error().find("job job1: seed 42") != std::string::npos);
    CHECK(program.error().find("denoise 3/3") != std::string::npos);
    std::ifstream file(fixture.folder / "circle.mp4", std::ios::binary);
    CHECK((std::string{std::istreambuf_iterator<char>(file), {}} == ScriptedJobs::resultContent()));
  }
  {
    RunningProgram program(fixture.command({"hold", "never.mp4", "--time-limit", "0.5"}), fixture.options());
    requireExit(program, 1);
    CHECK(program.error().find("cancelled: ") != std::string::npos);
    CHECK_FALSE(fs::exists(fixture.folder / "never.mp4"));
  }
  {
    RunningProgram program(fixture.command({"hold", "never.mp4"}), fixture.options());
    REQUIRE(program.waitForText("running: denoise", kPython));
    program.signal(SIGINT);
    requireExit(program, 1);
    CHECK(program.error().find("cancelled: ") != std::string::npos);
  }
  {
    RunningProgram program(fixture.command({"", "never.mp4"}), fixture.options());
    requireExit(program, 2);
    CHECK(program.error().find("INVALID_ARGUMENT: prompt: is empty") != std::string::npos);
  }
}

}  // namespace latentd::testing
