#include <chrono>
#include <csignal>
#include <string>

#include "tests/support/scripted_jobs.h"
#include "tests/tools/ctl/ctl_fixture.h"

namespace latentd::testing {

using namespace std::chrono_literals;

namespace {

// As somebody who wants out presses Ctrl-C; what follows the last one at once does not count.
void interruptUntilEnd(RunningProgram& program) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (std::chrono::steady_clock::now() < deadline) {
    program.signal(SIGINT);
    if (program.wait(100ms)) return;
  }
}

}  // namespace

TEST_CASE("latentctl: submit shows the way and writes the video", "[latentctl]") {
  CtlFixture fixture;
  const CtlResult result = fixture.run({"submit", "--prompt", "a red circle", "--steps",      "8", "--seed",
                                        "7",      "--size",   "64X48",        "--frames",     "5", "--guidance",
                                        "1.5",    "--fps",    "12",           "--flow-shift", "3", "--priority",
                                        "2",      "-o",       "out.mp4"});
  CAPTURE(result.error);
  CHECK(result.code == 0);
  CHECK((fixture.read("out.mp4") == ScriptedJobs::resultContent()));
  CHECK(fixture.files() == std::vector<std::string>{"out.mp4"});
  CHECK(contains(result.output, "wrote out.mp4 (683.6 KiB)"));
  CHECK(contains(result.error, "5 frames, 64x48, 8 steps, guidance 1.5, seed 7, 12 fps"));
  CHECK(contains(result.error, "queued: position 1"));
  CHECK(contains(result.error, "text: started"));
  CHECK(contains(result.error, "denoise: step 4/8"));
  CHECK(contains(result.error, ", 4.00 s in all\n"));
  CHECK(contains(result.error, "decode: done in "));
}

TEST_CASE("latentctl: on a terminal each stage has one live line", "[latentctl]") {
  CtlFixture fixture(20);
  RunningProgram::Options how;
  how.terminal = true;
  const CtlResult result = fixture.run({"submit", "--prompt", "a red circle", "--steps", "8", "-o", "out.gif"}, how);
  CHECK(result.code == 0);
  CAPTURE(result.error);
  CHECK(contains(result.error, "\x1b["));
  CHECK(contains(result.error, "denoise   [########........] 4/8"));
  CHECK(contains(result.error, "in all    4.00 s left"));
  CHECK(contains(result.error, ", step 5 for "));
  CHECK(contains(result.error, "decode    done in "));
  CHECK((fixture.read("out.gif") == ScriptedJobs::resultContent()));
}

TEST_CASE("latentctl: on a terminal time passes though the daemon says nothing", "[latentctl]") {
  CtlFixture fixture;
  RunningProgram::Options how = fixture.options();
  how.terminal = true;
  RunningProgram queued(fixture.command({"submit", "--prompt", "wait"}), how);
  CHECK(queued.waitForText("queued    position 1, for 1."));
  queued.signal(SIGINT);
  CHECK(queued.wait() == 130);
  // What stays on the screen ends with the outcome.
  CHECK(queued.error().ends_with("job job1 is cancelled\r\n"));

  RunningProgram stuck(fixture.command({"submit", "--prompt", "stuck"}), how);
  REQUIRE(stuck.waitForText("denoise   ["));
  stuck.signal(SIGINT);
  CHECK(stuck.waitForText("cancelling: the stage stops at its next step; for 1."));
  interruptUntilEnd(stuck);
  CHECK(stuck.wait() == 130);
}

TEST_CASE("latentctl: --quiet tells the file and the seed", "[latentctl]") {
  CtlFixture fixture;
  const CtlResult result = fixture.run({"submit", "--prompt", "x", "--steps", "1", "-q", "--seed", "7"});
  CHECK(result.code == 0);
  CHECK(result.output.empty());
  CHECK(result.error == "job1.mp4, seed 7\n");
}

TEST_CASE("latentctl: the output's name chooses the format, --format wins", "[latentctl]") {
  CtlFixture fixture;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"-o", "a.mp4"}, "OUTPUT_FORMAT_MP4"},
      {{"-o", "a.GIF"}, "OUTPUT_FORMAT_GIF"},
      {{"-o", "a.y4m"}, "OUTPUT_FORMAT_Y4M"},
      {{"-o", "a.png"}, "OUTPUT_FORMAT_PNG"},
      {{"-o", "a.npy"}, "OUTPUT_FORMAT_NPY"},
      {{"-o", "a.rgb"}, "OUTPUT_FORMAT_RGB24"},
      {{}, "OUTPUT_FORMAT_MP4"},
      {{"-o", "a.bin", "--format", "rgb"}, "OUTPUT_FORMAT_RGB24"},
      {{"-o", "a.npy", "--float"}, "OUTPUT_FORMAT_NPY"}};
  for (const auto& [arguments, format] : cases) {
    std::vector<std::string> all{"--json", "submit", "--prompt", "x", "--steps", "1"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const CtlResult result = fixture.run(all);
    CAPTURE(format, result.error);
    REQUIRE(result.code == 0);
    CHECK(result.json()["parameters"]["format"] == format);
    CHECK(result.json()["parameters"]["float_pixels"] == (arguments.size() == 3));
    CHECK(result.json()["state"] == "JOB_STATE_SUCCEEDED");
  }
  CHECK((fixture.read("job7.mp4") == ScriptedJobs::resultContent()));
}

TEST_CASE("latentctl: a result streams to standard output, progress does not", "[latentctl]") {
  CtlFixture fixture;
  const CtlResult result = fixture.run({"submit", "--prompt", "x", "--steps", "2", "--format", "y4m", "-o", "-"});
  CHECK(result.code == 0);
  CHECK((result.output == ScriptedJobs::resultContent()));
  CHECK(contains(result.error, "wrote standard output"));

  RunningProgram::Options closed;
  closed.closed_output = true;
  const CtlResult broken =
      fixture.run({"submit", "--prompt", "x", "--steps", "2", "--format", "y4m", "-o", "-"}, closed);
  CAPTURE(broken.error);
  CHECK(broken.code == 141);  // as the shell says of what SIGPIPE ends
  CHECK(!contains(broken.error, "latentctl:"));
  CHECK(!contains(broken.error, "wrote"));
}

TEST_CASE("latentctl: the prompt comes from a flag, a file or standard input", "[latentctl]") {
  CtlFixture fixture;
  std::ofstream(fixture.folder / "prompt.txt") << "from a file\n";
  const auto promptOf = [&](std::vector<std::string> arguments, const std::string& input) {
    arguments.insert(arguments.begin(), {"--json", "submit", "--detach"});
    RunningProgram::Options how;
    how.input = input;
    const CtlResult result = fixture.run(arguments, how);
    CAPTURE(result.error);
    REQUIRE(result.code == 0);
    return result.json()["parameters"]["prompt"].get<std::string>();
  };
  CHECK(promptOf({"--prompt", "as it is"}, "") == "as it is");
  CHECK(promptOf({"--prompt-file", "prompt.txt"}, "") == "from a file");
  CHECK(promptOf({"--prompt", "-"}, "from a pipe\r\n") == "from a pipe");
  CHECK(promptOf({"--prompt-file", "-"}, "ein K\xc3\xa4se") == "ein K\xc3\xa4se");
}

TEST_CASE("latentctl: bad arguments end with 2 and name the flag, before or at the daemon", "[latentctl]") {
  CtlFixture fixture;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{}, "prompt"},
      {{"--prompt", "x", "--prompt-file", "y"}, "prompt"},
      {{"--prompt", "x", "--nonsense"}, "--nonsense"},
      {{"--prompt", "x", "--size", "64"}, "--size 64"},
      {{"--prompt", "x", "--size", "64x-1"}, "--size 64x-1"},
      {{"--prompt", "x", "--frames", "-1"}, "--frames"},
      {{"--prompt", "x", "--frames", "4294967296"}, "4294967296"},
      {{"--prompt", "x", "--seed", "18446744073709551616"}, "--seed"},
      {{"--prompt", "x", "--steps", "many"}, "--steps: 'many' is not a whole number from 1;"},
      {{"--prompt", "x", "--steps", "0"}, "--steps: '0' is not a whole number from 1;"},
      {{"--prompt", "x", "--guidance", "much"}, "--guidance: 'much' is not a number"},
      {{"--prompt", "x", "--detach", "-o", "a.mp4"}, "-o a.mp4: --detach writes no file; "},
      {{"--prompt", "x", "--detach", "-o", "a.mp4"}, "`latentctl download ID -o a.mp4`"},
      {{"--prompt", "x", "--detach", "--format", "y4m", "-o", "-"}, "--detach writes no file"},
      {{"--prompt", "x", "--priority", "101"}, "--priority"},
      {{"--prompt", "x", "--deadline", "5 parsecs"}, "--deadline"},
      {{"--prompt", "x", "--deadline", "-5s"}, "deadline"},
      {{"--prompt", "x", "--deadline", "5"}, "write 5s"},
      {{"--prompt", "x", "-o", "a.npy", "--format", "mp4"}, "a.npy: the name says npy, but the result is to be mp4"},
      {{"--prompt", "x", "-o", "."}, "is a folder; give a file name, such as ./video.mp4"},
      {{"--prompt", "x", "-o", "clips/"}, "clips/video.mp4"},
      {{"--prompt", "x", "-o", "video.avi"}, "video.avi"},
      {{"--prompt", "x", "-o", "video"}, "mp4, gif"},
      {{"--prompt", "x", "--format", "avi"}, "--format avi"},
      {{"--prompt", "x", "-o", "-"}, "--format"},
      {{"--prompt", "x", "-o", ".", "--format", "mp4"}, "folder"},
      {{"--prompt", "x", "-o", "a.mp4", "--float"}, "--float"},
      {{"--prompt", "\xff\xfe"}, "UTF-8"},
      {{"--prompt", "x", "--negative-prompt", "\xc0\x80"}, "--negative-prompt"},
      {{"--prompt", std::string(1001, 'p')}, "--prompt: has 1001 bytes"},
      {{"--prompt", "-"}, "--prompt: is empty"},
  };
  for (const auto& [arguments, named] : cases) {
    std::vector<std::string> all{"submit"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const CtlResult result = fixture.run(all);
    CAPTURE(named, result.error);
    CHECK(result.code == 2);
    CHECK(contains(result.error, named));
    CHECK(result.output.empty());
  }
  CHECK(fixture.run({"list", "--quiet"}).output.empty());
  CHECK(fixture.files().empty());
}

TEST_CASE("latentctl: an output that cannot be written is found before the job is queued", "[latentctl]") {
  CtlFixture fixture;
  const CtlResult result = fixture.run({"submit", "--prompt", "x", "-o", "missing/out.mp4"});
  CHECK(result.code == 7);
  CHECK(contains(result.error, "missing/out.mp4: there is no folder missing; make it"));
  CHECK(fixture.run({"submit", "--prompt-file", "nowhere.txt"}).code == 7);
  CHECK(fixture.run({"list", "--quiet"}).output.empty());
}

TEST_CASE("latentctl: a failed job ends with 1, says why and leaves no file", "[latentctl]") {
  CtlFixture fixture;
  std::ofstream(fixture.folder / "out.mp4") << "from before";
  const CtlResult result = fixture.run({"submit", "--prompt", "fail", "-o", "out.mp4"});
  CHECK(result.code == 1);
  CHECK(contains(result.error, "failed: UNAVAILABLE: denoise rank 0: killed by SIGKILL in step 2"));
  CHECK(fixture.read("out.mp4") == "from before");
  CHECK(fixture.files().size() == 1);

  const CtlResult json = fixture.run({"--json", "submit", "--prompt", "fail", "-o", "out.mp4"});
  CHECK(json.code == 1);
  CHECK(json.json()["error"]["code"] == "UNAVAILABLE");
}

TEST_CASE("latentctl: a result that breaks off ends with 8 and leaves no file", "[latentctl]") {
  CtlFixture fixture;
  const CtlResult result = fixture.run({"submit", "--prompt", "short", "--steps", "1", "-o", "out.mp4"});
  CHECK(result.code == 8);
  CHECK(contains(result.error, "350000 of 700001"));
  CHECK(fixture.files().empty());
}

TEST_CASE("latentctl: Ctrl-C cancels the job, says so and ends with 130", "[latentctl]") {
  CtlFixture fixture;
  for (const std::string prompt : {"hold", "wait"}) {
    CAPTURE(prompt);
    RunningProgram program(fixture.command({"submit", "--prompt", prompt, "-o", "out.mp4"}), fixture.options());
    REQUIRE(program.waitForText(prompt == "hold" ? "denoise: started" : "queued: position"));
    program.signal(SIGINT);
    REQUIRE(program.wait() == 130);
    CAPTURE(program.error());
    const std::string id = fixture.run({"list", "--quiet", "--limit", "1"}).output;
    CHECK(contains(program.error(), "cancelling job " + id.substr(0, id.find('\n'))));
    CHECK(contains(program.error(), "is cancelled"));
    CHECK(fixture.state(id.substr(0, id.find('\n'))) == "JOB_STATE_CANCELLED");
    CHECK(fixture.files().empty());
  }
}

TEST_CASE("latentctl: SIGTERM cancels like Ctrl-C and ends with 143", "[latentctl]") {
  CtlFixture fixture;
  RunningProgram program(fixture.command({"submit", "--prompt", "hold"}), fixture.options());
  REQUIRE(program.waitForText("denoise: started"));
  program.signal(SIGTERM);
  CHECK(program.wait() == 143);
  CHECK(fixture.state("job1") == "JOB_STATE_CANCELLED");
}

TEST_CASE("latentctl: a second Ctrl-C leaves a job that does not stop", "[latentctl]") {
  CtlFixture fixture;
  RunningProgram program(fixture.command({"submit", "--prompt", "stuck", "-o", "out.mp4"}), fixture.options());
  REQUIRE(program.waitForText("denoise: started"));
  program.signal(SIGINT);
  REQUIRE(program.waitForText("cancelling: the stage stops at its next step"));
  CHECK(contains(program.error(), "cancelling job job1 (interrupt again to leave without waiting)"));
  interruptUntilEnd(program);
  REQUIRE(program.wait() == 130);
  CHECK(contains(program.error(), "left without waiting for the end of job job1: `latentctl get job1`"));
  CHECK(fixture.state("job1") == "JOB_STATE_CANCELLING");
  CHECK(fixture.files().empty());
}

TEST_CASE("latentctl: a job that somebody else cancels ends with 4", "[latentctl]") {
  CtlFixture fixture;
  RunningProgram program(fixture.command({"submit", "--prompt", "hold", "-o", "out.mp4"}), fixture.options());
  REQUIRE(program.waitForText("denoise: started"));
  CHECK(fixture.run({"cancel", "job1"}).code == 0);
  REQUIRE(program.wait() == 4);
  CHECK(contains(program.error(), "was cancelled"));
  CHECK(fixture.files().empty());
}

TEST_CASE("latentctl: a daemon that dies or stops during a job ends submit with 3", "[latentctl]") {
  for (const int number : {SIGKILL, SIGSTOP}) {
    CAPTURE(number);
    CtlFixture fixture;
    RunningProgram program(fixture.command({"--timeout", "2s", "submit", "--prompt", "hold", "-o", "out.mp4"}),
                           fixture.options());
    REQUIRE(program.waitForText("denoise: started"));
    fixture.daemon.signal(number);
    REQUIRE(program.wait(60s) == 3);
    CAPTURE(program.error());
    CHECK(contains(program.error(), "the daemon at " + fixture.daemon.endpoint() + " stopped"));
    CHECK(contains(program.error(), "job job1, last seen running, "));
    CHECK(contains(program.error(), number == SIGKILL ? "submit the job again" : "`latentctl watch job1` once it"));
    CHECK(fixture.files().empty());
  }
}

TEST_CASE("latentctl: two Ctrl-C leave even a daemon that does not answer", "[latentctl]") {
  CtlFixture fixture;
  RunningProgram program(fixture.command({"--timeout", "50m", "submit", "--prompt", "hold"}), fixture.options());
  REQUIRE(program.waitForText("denoise: started"));
  fixture.daemon.signal(SIGSTOP);
  program.signal(SIGINT);
  REQUIRE(program.waitForText("interrupted: cancelling"));
  interruptUntilEnd(program);
  CHECK(program.wait(60s) == 130);
}

}  // namespace latentd::testing
