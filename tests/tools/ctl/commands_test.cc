#include <chrono>
#include <csignal>
#include <regex>
#include <sstream>
#include <string>

#include "tests/support/scripted_jobs.h"
#include "tests/support/slack.h"
#include "tests/tools/ctl/ctl_fixture.h"

namespace latentd::testing {

using namespace std::chrono_literals;

TEST_CASE("latentctl: list shows an aligned table, filters and limits", "[latentctl]") {
  CtlFixture fixture;
  const std::string done = fixture.leave("a finished job\nwith two lines");
  REQUIRE(fixture.becomes(done, "JOB_STATE_SUCCEEDED"));
  const std::string failed = fixture.leave("fail");
  REQUIRE(fixture.becomes(failed, "JOB_STATE_FAILED"));
  const std::string waiting = fixture.leave("wait");

  const CtlResult table = fixture.run({"list"});
  CHECK(table.code == 0);
  std::istringstream lines(table.output);
  std::string heading, first, second, third;
  std::getline(lines, heading);
  std::getline(lines, first);
  std::getline(lines, second);
  std::getline(lines, third);
  CHECK(heading.rfind("ID    STATE      PROGRESS", 0) == 0);
  CHECK(first.rfind(waiting + "  queued     position 1", 0) == 0);
  CHECK(second.rfind(failed + "  failed     UNAVAILABLE", 0) == 0);
  CHECK(third.rfind(done + "  succeeded  done, 683.6 KiB", 0) == 0);
  CHECK(contains(third, "a finished job with two lines"));
  CHECK(first.find("wait") == heading.find("PROMPT"));

  CHECK(fixture.run({"list", "--quiet", "--state", "succeeded,failed"}).output == failed + "\n" + done + "\n");
  CHECK(fixture.run({"list", "--quiet", "--state", "succeeded", "--state", "queued"}).output ==
        waiting + "\n" + done + "\n");
  CHECK(fixture.run({"list", "--quiet", "--since", "1h"}).output == waiting + "\n" + failed + "\n" + done + "\n");
  const CtlResult limited = fixture.run({"list", "--quiet", "--limit", "1"});
  CHECK(limited.output == waiting + "\n");
  CHECK(contains(fixture.run({"list", "--limit", "2"}).error, "--limit 0"));
  const CtlResult bad = fixture.run({"list", "--state", "sleeping"});
  CHECK(bad.code == 2);
  CHECK(contains(bad.error, "queued, running"));
}

TEST_CASE("latentctl: list --limit 0 gathers all pages", "[latentctl]") {
  CtlFixture fixture;
  for (int i = 0; i < 60; ++i)
    fixture.leave("wait");
  CHECK(fixture.run({"--json", "list"}).json()["jobs"].size() == 50);
  CHECK(fixture.run({"--json", "list", "--limit", "0"}).json()["jobs"].size() == 60);
  CHECK(fixture.run({"--json", "list", "--limit", "55"}).json()["jobs"].size() == 55);
  const std::string token = fixture.run({"--json", "list", "--limit", "55"}).json()["next_page_token"];
  CHECK(fixture.run({"--json", "list", "--page-token", token}).json()["jobs"].size() == 5);
}

TEST_CASE("latentctl: --json is the API's messages with their field names", "[latentctl]") {
  CtlFixture fixture;
  const std::string id = fixture.leave("a red circle");
  REQUIRE(fixture.becomes(id, "JOB_STATE_SUCCEEDED"));
  const nlohmann::json job = fixture.run({"get", id, "--json"}).json();
  for (const char* field : {"id", "state", "parameters", "priority", "queue_position", "stages", "transfers",
                            "create_time", "start_time", "finish_time", "result_bytes", "result_available"}) {
    CAPTURE(field);
    CHECK(job.contains(field));
  }
  CHECK(job["parameters"]["guidance_scale"] == 2.5);
  CHECK(job["stages"][1]["stage"] == "denoise");
  CHECK(job["result_bytes"] == "700001");  // 64-bit numbers are texts in proto3 JSON
  CHECK(fixture.run({"--json", "list"}).json()["jobs"][0]["id"] == id);
  CHECK(fixture.run({"--json", "topology"}).json()["groups"].size() == 3);
  const nlohmann::json edges = fixture.run({"--json", "edges"}).json()["edges"];
  for (const char* field : {"name", "transport", "transport_reason", "slots", "slots_in_use", "handoffs", "bytes",
                            "producers", "consumers"}) {
    CAPTURE(field);
    CHECK(edges[0].contains(field));
  }
  const nlohmann::json topology = fixture.run({"--json", "topology"}).json();
  CHECK(topology["edges"] == edges);
  CHECK(topology["limits"]["frame_step"] == 4);
  CHECK(topology["groups"][1]["workers"][1]["place"][0]["dimension"] == "ulysses");
  CHECK(topology["groups"][1]["workers"][1]["place"][0]["index"] == 1);
  for (const char* field : {"rank", "pid", "device", "state", "memory_bytes", "device_memory_bytes", "place"}) {
    CAPTURE(field);
    CHECK(topology["groups"][0]["workers"][0].contains(field));
  }
  CHECK(fixture.run({"--json", "version"}).json()["daemon"]["api"] == "latentd.v1");
  CHECK(fixture.run({"--json", "cancel", fixture.leave("wait")}).json()["state"] == "JOB_STATE_CANCELLED");
  CHECK(fixture.run({"--json", "delete", id}).json()["id"] == id);
  CHECK(fixture.run({"--json", "drain"}).json()["jobs_left"] == 0);

  const CtlResult error = fixture.run({"--json", "get", "nobody"});
  CHECK(error.code == 5);
  CHECK(error.output.empty());
  CHECK(nlohmann::json::parse(error.error)["error"]["code"] == "NOT_FOUND");
}

TEST_CASE("latentctl: get, topology, edges and version read well", "[latentctl]") {
  CtlFixture fixture;
  const std::string id = fixture.leave("a red circle");
  REQUIRE(fixture.becomes(id, "JOB_STATE_SUCCEEDED"));
  const CtlResult job = fixture.run({"get", id});
  CHECK(contains(job.output, "state            succeeded"));
  CHECK(contains(job.output, "size             128x128"));
  CHECK(contains(job.output, "STAGE    STATE  STEPS  INPUT WAIT  COMPUTE"));
  CHECK(contains(job.output, "INPUT WAIT: until its inputs were there"));
  const CtlResult topology = fixture.run({"topology"});
  CHECK(topology.code == 0);
  CHECK(contains(topology.output, "denoise  fake.denoise  0     ulysses 0  cpu     ready"));
  CHECK(contains(topology.output, "denoise  fake.denoise  1     ulysses 1  cpu     failed  -     1 "));
  CHECK(contains(topology.output, "text     fake.text     0     -          cpu     ready"));
  CHECK(contains(topology.output, "300.0 MiB"));
  CHECK(contains(topology.output, "300.0 MiB  -"));  // device memory of one on the CPU
  CHECK(contains(topology.output,
                 "mesh of denoise: ulysses 2 over gloo (its ranks are on the CPU), heads scattered "
                 "over shm (the topology says so)\n"));
  CHECK(!contains(topology.output, "mesh of text"));
  const std::string edges = fixture.run({"edges"}).output;
  CHECK(contains(edges, "text.encode->denoise.denoise    shm        2"));
  CHECK(contains(edges, "denoise.denoise->decode.decode  publishes  0     7          1.0 MiB    0\n"));
  CHECK(contains(edges, "denoise.denoise->decode.decode  publishes  1     6          512.0 KiB  1\n"));
  CHECK(contains(edges, "denoise.denoise->decode.decode  reads      0     -          1.0 MiB    -\n"));
  CHECK(!contains(edges, "text.encode->denoise.denoise    publishes"));
  CHECK(contains(topology.output, "steps       -        any\n"));
  CHECK(contains(topology.output, "frames      -        1 + k * 4\n"));
  CHECK(contains(topology.output, "guidance    -        0 to 20\n"));
  CHECK(contains(topology.output, "flow shift  -        0.5 to 50\n"));
  CHECK(contains(topology.output, "fps         -        0.01 to 120\n"));
  CHECK(contains(topology.output, "size        -        multiples of 16\n"));
  const CtlResult version = fixture.run({"version"});
  CHECK(contains(version.output, "latentctl "));
  CHECK(contains(version.output, "latentd "));
}

TEST_CASE("latentctl: dump tells who waits for whom, and what each rank did last", "[latentctl]") {
  CtlFixture fixture;
  const CtlResult dump = fixture.run({"dump"});
  CHECK(dump.code == 0);
  const std::regex time("at [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}");  // the zone is the machine's
  CHECK(std::regex_replace(dump.output, time, "at TIME") ==
        "denoise, epoch 3\n"
        "rank 1 waits in all_to_all 2 of ulysses for 4.00 s, which rank 0 has not begun\n"
        "RANK  BEGUN  SENT     AGO     OPERATION   PROCESS GROUP  RUN  NUMBER  DTYPE     SHAPE  BYTES    TOOK\n"
        "0     40     4.0 KiB  5.00 s  all_to_all  ulysses        -    1       bfloat16  2x320  4.0 KiB  2.000 ms\n"
        "1     41     8.0 KiB  5.00 s  all_to_all  ulysses        -    1       bfloat16  2x320  4.0 KiB  2.000 ms\n"
        "                      4.00 s  all_to_all  ulysses        6    2       bfloat16  2x320  4.0 KiB  under way for "
        "4.00 "
        "s\n"
        "\n"
        "denoise, epoch 2, which failed 2.00 s ago, at TIME: UNAVAILABLE: denoise rank 0 (fake.denoise): "
        "died\n"
        "rank 1 waits in all_to_all 2 of ulysses for 4.00 s, which rank 0 has not begun\n"
        "RANK  BEGUN  SENT     BEFORE END  OPERATION   PROCESS GROUP  RUN  NUMBER  DTYPE     SHAPE  BYTES    TOOK\n"
        "0     40     4.0 KiB  3.00 s      all_to_all  ulysses        -    1       bfloat16  2x320  4.0 KiB  2.000 ms\n"
        "1     41     8.0 KiB  3.00 s      all_to_all  ulysses        -    1       bfloat16  2x320  4.0 KiB  2.000 ms\n"
        "                      2.00 s      all_to_all  ulysses        6    2       bfloat16  2x320  4.0 KiB  under way "
        "for "
        "2.00 s\n"
        "\n"
        "BEGUN, SENT: operations and bytes of the rank in this epoch. AGO, BEFORE END: since the operation began, "
        "until now or\n"
        "until the epoch's end. RUN: of the group's commands in this epoch; - is its start. NUMBER: of the operations "
        "of the\n"
        "process group; ranks that are at the same have the same. DTYPE, SHAPE: of what the rank gives. BYTES: of it, "
        "to\n"
        "other ranks. TOOK: from beginning to end.\n");
  const std::string one_each = fixture.run({"dump", "denoise", "--last", "1"}).output;
  const std::string present = one_each.substr(0, one_each.find("epoch 2"));
  CHECK(present.find("2.000 ms") == present.rfind("2.000 ms"));
  const nlohmann::json records = fixture.run({"--json", "dump", "denoise"}).json();
  CHECK(records["groups"][0]["ranks"][1]["recent"][1]["kind"] == "all_to_all");
  CHECK(records["groups"][0]["ranks"][1]["recent"][1]["done_ns"] == "0");
  CHECK(records["groups"][1]["cause"]["code"] == "UNAVAILABLE");
  const CtlResult unknown = fixture.run({"dump", "decoder"});
  CHECK(unknown.code != 0);
  CHECK(contains(unknown.error, "decoder"));
}

TEST_CASE("latentctl: watch ends with the job's outcome", "[latentctl]") {
  CtlFixture fixture;
  const CtlResult good = fixture.run({"watch", fixture.leave("fine")});
  CHECK(good.code == 0);
  CHECK(contains(good.output, "succeeded"));
  const CtlResult failed = fixture.run({"watch", fixture.leave("fail")});
  CHECK(failed.code == 1);
  CHECK(contains(failed.error, "killed by SIGKILL"));
  const std::string dropped = fixture.leave("hold");
  REQUIRE(fixture.becomes(dropped, "JOB_STATE_RUNNING"));
  CHECK(fixture.run({"cancel", dropped}).code == 0);
  // The words of submit.
  CHECK(
      contains(fixture.run({"watch", dropped}).error, "job " + dropped + " was cancelled: cancelled by the client\n"));

  const std::string held = fixture.leave("hold");
  RunningProgram program(fixture.command({"--json", "watch", held}), fixture.options());
  REQUIRE(program.waitForText("JOB_STATE_RUNNING"));
  CHECK(fixture.run({"cancel", held}).code == 0);
  REQUIRE(program.wait() == 4);
  std::istringstream lines(program.output());
  std::string line, last;
  while (std::getline(lines, line))
    last = nlohmann::json::parse(line)["state"];
  CHECK(last == "JOB_STATE_CANCELLED");
}

TEST_CASE("latentctl: download writes a file whole or not at all", "[latentctl]") {
  CtlFixture fixture;
  const std::string id = fixture.leave("fine");
  REQUIRE(fixture.becomes(id, "JOB_STATE_SUCCEEDED"));
  CHECK(fixture.run({"download", id}).code == 0);
  CHECK((fixture.read(id + ".mp4") == ScriptedJobs::resultContent()));
  CHECK((fixture.run({"download", id, "-o", "-"}).output == ScriptedJobs::resultContent()));
  CHECK(fixture.run({"download", id, "-o", "/dev/null"}).code == 0);
  CHECK(std::filesystem::is_character_file("/dev/null"));

  const CtlResult misnamed = fixture.run({"download", id, "-o", "none.gif"});
  CHECK(misnamed.code == 2);
  CHECK(contains(misnamed.error, "none.gif: the name says gif, but the result is to be mp4"));
  RunningProgram::Options closed;
  closed.closed_output = true;
  const CtlResult unread = fixture.run({"download", id, "-o", "-"}, closed);
  CHECK(unread.code == 141);
  CHECK(unread.error.empty());

  const CtlResult running = fixture.run({"download", fixture.leave("hold"), "-o", "none.mp4"});
  CHECK(running.code == 6);
  const std::string broken = fixture.leave("short");
  REQUIRE(fixture.becomes(broken, "JOB_STATE_SUCCEEDED"));
  CHECK(fixture.run({"download", broken, "-o", "none.mp4"}).code == 8);
  const CtlResult missing = fixture.run({"download", id, "-o", "missing/none.mp4"});
  CHECK(missing.code == 7);
  CHECK(contains(missing.error, "there is no folder missing; make it"));
  const CtlResult bogus = fixture.run({"download", id, "-o", "none.bogus"});
  CHECK(bogus.code == 2);
  CHECK(contains(bogus.error, "none.bogus: the name ends in none of mp4, gif"));
  CHECK(fixture.files() == std::vector<std::string>{id + ".mp4"});
}

TEST_CASE("latentctl: refusals have codes of their own", "[latentctl]") {
  CtlFixture fixture;
  const std::string held = fixture.leave("hold");
  REQUIRE(fixture.becomes(held, "JOB_STATE_RUNNING"));
  CHECK(fixture.run({"delete", held}).code == 6);
  CHECK(fixture.run({"watch", "nobody"}).code == 5);
  CHECK(fixture.run({"download", "nobody"}).code == 5);
  const CtlResult mixed = fixture.run({"cancel", "nobody", held});
  CHECK(mixed.code == 5);
  CHECK(contains(mixed.output, "job " + held + " is cancelling"));
  CHECK(fixture.run({"drain", "--deadline", "5m"}).code == 0);
  const CtlResult draining = fixture.run({"submit", "--prompt", "x"});
  CHECK(draining.code == 6);
  CHECK(contains(draining.error, "drains"));
}

TEST_CASE("latentctl: drain --wait says what it waits for and ends with the daemon", "[latentctl]") {
  CtlFixture fixture;
  const std::string held = fixture.leave("hold");
  REQUIRE(fixture.becomes(held, "JOB_STATE_RUNNING"));
  const CtlResult impatient = fixture.run({"drain", "--wait", "--wait-timeout", "50ms"});
  CHECK(impatient.code == 9);
  CHECK(contains(impatient.error, "still drains after --wait-timeout 50ms"));
  CHECK(fixture.run({"drain", "--wait-timeout", "1s"}).code == 2);

  RunningProgram program(fixture.command({"drain", "--wait"}), fixture.options());
  REQUIRE(program.waitForText("waiting for job " + held + " (running, denoise 1/4)"));
  CHECK(fixture.run({"cancel", held}).code == 0);
  REQUIRE(program.waitForText("no job is left"));
  fixture.daemon.signal(SIGKILL);
  REQUIRE(program.wait() == 4);
  CHECK(contains(program.output(), "draining: no new jobs; 1 left"));
  CHECK(contains(program.output(), "has ended; 1 of its jobs were cancelled"));
}

TEST_CASE("latentctl: drain --wait ends with 0 where every job came to its own end", "[latentctl]") {
  CtlFixture fixture;
  const std::string cancelled = fixture.leave("wait");
  REQUIRE(fixture.run({"cancel", cancelled}).code == 0);  // before the drain
  fixture.leave("fail");
  RunningProgram program(fixture.command({"drain", "--wait"}), fixture.options());
  REQUIRE(program.waitForText("no job is left"));
  fixture.daemon.signal(SIGKILL);
  REQUIRE(program.wait() == 0);
  CHECK(contains(program.output(), "has ended\n"));
}

TEST_CASE("latentctl: trace writes a file that viewers read", "[latentctl]") {
  CtlFixture fixture;
  const std::string id = fixture.leave("fine");
  const CtlResult written = fixture.run({"trace", id, "-o", "t.json"});
  CHECK(written.code == 0);
  CHECK(contains(written.output, "wrote t.json (10 spans)"));
  CHECK(contains(written.error, "3 spans are missing: the topology's trace.spans_max"));
  const nlohmann::json trace = nlohmann::json::parse(fixture.read("t.json"));
  CHECK(trace["otherData"]["job"] == id);
  CHECK(trace["traceEvents"].size() > 10);
  CHECK(fixture.run({"trace", id, "-o", "-"}).json() == trace);
  CHECK(fixture.run({"--json", "trace", id}).json()["spans"] == 10);
  CHECK(nlohmann::json::parse(fixture.read(id + ".trace.json")) == trace);
  CHECK(fixture.run({"trace", "nobody"}).code == 5);
  CHECK(fixture.run({"trace", id, "-o", "missing/t.json"}).code == 7);
}

TEST_CASE("latentctl: a full queue is a refusal", "[latentctl]") {
  CtlFixture fixture;
  for (int i = 0; i < 200; ++i)
    fixture.leave("wait");
  const CtlResult result = fixture.run({"submit", "--prompt", "wait"});
  CHECK(result.code == 6);
  CHECK(contains(result.error, "the queue is full"));
}

TEST_CASE("latentctl: no daemon is said at once, with what to do", "[latentctl]") {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"list"}, {"submit", "--prompt", "x"}, {"watch", "job1"}, {"download", "job1"}, {"topology"}, {"version"}}) {
    std::vector<std::string> command{builtBinary("tools/latentctl")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    RunningProgram::Options how;
    how.environment = {"LATENTD_ENDPOINT=127.0.0.1:1"};
    const auto before = std::chrono::steady_clock::now();
    RunningProgram program(command, how);
    REQUIRE(program.wait() == 3);
    CHECK(std::chrono::steady_clock::now() - before < withSlack(8s));
    CAPTURE(program.error());
    CHECK(contains(program.error(), "no daemon answers at 127.0.0.1:1"));
    CHECK(contains(program.error(), "LATENTD_ENDPOINT"));
    CHECK(contains(program.output(), "latentctl ") == (arguments[0] == "version"));
  }
}

TEST_CASE("latentctl: a daemon that is stopped does not hang it", "[latentctl]") {
  CtlFixture fixture;
  fixture.leave("hold");
  fixture.daemon.signal(SIGSTOP);
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"list"}, {"watch", "job1"}, {"submit", "--prompt", "x"}}) {
    std::vector<std::string> all{"--timeout", "1s"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const CtlResult result = fixture.run(all);
    CAPTURE(result.error);
    CHECK(result.code == 3);
    CHECK(contains(result.error, fixture.daemon.endpoint()));
  }
}

TEST_CASE("latentctl: --help names every command and the exit codes", "[latentctl]") {
  CtlFixture fixture;
  const CtlResult help = fixture.run({"--help"});
  CHECK(help.code == 0);
  for (const char* word :
       {"submit", "list", "get", "watch", "cancel", "download", "delete", "topology", "edges", "dump", "drain",
        "version", "completion", "--endpoint", "--json", "LATENTD_ENDPOINT", "Exit codes", "Examples", "130"}) {
    CAPTURE(word);
    CHECK(contains(help.output, word));
  }
  const CtlResult submit = fixture.run({"submit", "--help"});
  CHECK(submit.code == 0);
  for (const char* flag : {"--prompt", "--negative-prompt", "--frames", "--size", "--steps", "--guidance", "--seed",
                           "--fps", "--flow-shift", "--priority", "--detach", "--float", "--format", "-o"}) {
    CAPTURE(flag);
    CHECK(contains(submit.output, flag));
  }
  CHECK(fixture.run({}).code == 2);
  CHECK(fixture.run({"nonsense"}).code == 2);
  // Of a command: its own examples, and the options that every command takes.
  const CtlResult cancel = fixture.run({"cancel", "--help"});
  for (const char* word : {"--endpoint", "--json", "--timeout", "latentctl cancel $("}) {
    CAPTURE(word, cancel.output);
    CHECK(contains(cancel.output, word));
  }
  CHECK(!contains(cancel.output, "ffplay"));
  CHECK(!contains(cancel.output, "Exit codes:"));
}

TEST_CASE("latentctl: what is not understood is named, with what may have been meant", "[latentctl]") {
  CtlFixture fixture;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"lst"}, "latentctl: unknown command 'lst'; did you mean 'list'? `latentctl --help`"},
      {{"explode"}, "latentctl: unknown command 'explode'; `latentctl --help`"},
      {{}, "latentctl: a command is missing; `latentctl --help`"},
      {{"submit", "--promt", "x"}, "latentctl: unknown option '--promt'; did you mean '--prompt'? `latentctl submit"},
      {{"list", "--endpont=x"}, "unknown option '--endpont'; did you mean '--endpoint'?"},
      {{"get", "--jso"}, "unknown option '--jso'; did you mean '--json'?"},
      {{"get"}, "latentctl: id is required; `latentctl get --help`"},
      {{"topology", "extra"}, "unexpected argument 'extra'"},
      {{"list", "--limit", "x"}, "latentctl: --limit: 'x' is not a whole number from 0;"},
  };
  for (const auto& [arguments, said] : cases) {
    const CtlResult result = fixture.run(arguments);
    CAPTURE(said, result.error);
    CHECK(result.code == 2);
    CHECK(contains(result.error, said));
  }
  const CtlResult json = fixture.run({"--json", "lst"});
  CHECK(contains(nlohmann::json::parse(json.error)["error"]["message"], "did you mean 'list'"));
}

TEST_CASE("latentctl: an endpoint that is none is refused before anything is asked", "[latentctl]") {
  for (const std::string endpoint : {"nonsense", "http://127.0.0.1:7411", "127.0.0.1:", ":7411", "127.0.0.1:0",
                                     "127.0.0.1:70000", "::1:7411", "[::1:7411", "a b:1"}) {
    RunningProgram program({builtBinary("tools/latentctl"), "--endpoint", endpoint, "list"});
    REQUIRE(program.wait() == 2);
    CAPTURE(program.error());
    CHECK(contains(program.error(), "endpoint '" + endpoint + "' is not HOST:PORT; for example 127.0.0.1:7411"));
  }
  for (const std::string endpoint : {"localhost:1", "[::1]:1"}) {
    RunningProgram program({builtBinary("tools/latentctl"), "--endpoint", endpoint, "list"});
    CHECK(program.wait() == 3);
  }
}

TEST_CASE("latentctl: --version needs no daemon", "[latentctl]") {
  RunningProgram program({builtBinary("tools/latentctl"), "--version"});
  REQUIRE(program.wait() == 0);
  CHECK(program.output().rfind("latentctl ", 0) == 0);
  CHECK(contains(program.output(), "(latentd.v1)"));
  CHECK(program.error().empty());
}

}  // namespace latentd::testing
