// latent-worker as a process, against a supervisor that the test plays: start, commands, ends and deaths.
#include <signal.h>

#include <filesystem>

#include "runtime/base/unix_socket.h"
#include "runtime/media/frame_ring.h"
#include "tests/runtime/worker/scripted_supervisor.h"

namespace latentd::worker {
namespace {

using Code = absl::StatusCode;
using Event = ScriptedWorker::Event;

bool isProgress(const Event& event) { return event.has_progress(); }

Code codeOf(const Event& end) { return end.has_done() ? Code::kOk : static_cast<Code>(end.failed().status().code()); }

media::FrameRing makeRing() { return media::FrameRing::create({.width = 16, .height = 8, .capacity = 2}).value(); }

media::FrameRingReader readerOf(const media::FrameRing& ring) { return media::FrameRingReader::attach(ring).value(); }

// Reads all frames; the first byte of each.
std::vector<int> drain(media::FrameRingReader& reader) {
  std::vector<int> levels;
  while (true) {
    const auto frame = reader.next(soon());
    REQUIRE(frame.ok());
    if (!frame->has_value()) return levels;
    levels.push_back(std::to_integer<int>((**frame)[0]));
    reader.release();
  }
}

// ---- life ---------------------------------------------------------------------------------------------------

TEST_CASE("worker process: registers, loads, reports ready, beats and shuts down", "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& worker = supervisor.start({.group = "text", .epoch = 3, .options = {{"load_ms", "200"}}});
  const Event registered = worker.events.all().front();
  CHECK(registered.epoch() == 3);
  CHECK(registered.register_().pid() == worker.process.pid());
  worker.load();
  const auto phase = [](const char* name, double fraction) {
    return [=](const Event& event) {
      return event.has_phase() && event.phase().phase() == name && event.phase().fraction() == fraction;
    };
  };
  worker.wait(phase("loading", 0));
  worker.wait(phase("loading", 1));
  worker.wait(phase("warming up", 1));
  const Event ready = worker.wait([](const Event& event) { return event.has_ready(); });
  REQUIRE(ready.ready().methods_size() == 3);
  CHECK(ready.ready().methods(1).inputs(0) == "payload");
  CHECK(ready.ready().methods(2).emits_frames());
  CHECK(ready.ready().load_seconds() >= 0.15);
  const Event beat = worker.wait([](const Event& event) { return event.has_heartbeat(); }, 3);
  CHECK(beat.heartbeat().resident_bytes() > (1 << 20));
  REQUIRE(beat.heartbeat().device_memory_size() == 2);
  CHECK(beat.heartbeat().device_memory(0).device() == "cpu");
  CHECK(beat.heartbeat().device_memory(0).kind() == "resident");
  CHECK(beat.heartbeat().device_memory(0).bytes() == beat.heartbeat().resident_bytes());
  CHECK(beat.heartbeat().device_memory(1).kind() == "pools");
  CHECK(beat.heartbeat().device_memory(1).bytes() == 0);
  worker.shutdown();
  CHECK(worker.exit().success());
}

TEST_CASE("worker process: an end, or a retire, interrupts a consumer that waits for its producer",
          "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& worker = supervisor.startReady({.group = "relay"});
  // Accepts, and never answers the handshake.
  const std::string path = supervisor.directory() + "/mute";
  const StatusOr<UnixListener> listener = UnixListener::bind(path, 1);
  REQUIRE(listener.ok());
  worker.openConsumer(channelBetween(worker, worker, 1), {path});
  SECTION("retired") {
    worker.retire(1);
    const Event answer = worker.wait([](const Event& event) { return event.has_edge_ready(); });
    CHECK(answer.edge_ready().status().code() == static_cast<int>(Code::kCancelled));
    worker.wait([](const Event& event) { return event.has_edge_retired(); });
  }
  worker.shutdown(20'000);
  CHECK(worker.exit().success());
}

TEST_CASE("worker process: what keeps it from starting is said in Fatal", "[worker][process]") {
  ScriptedSupervisor supervisor;
  WorkerScript script;
  Code expected = Code::kFailedPrecondition;
  std::string part = "option fail_load is true";
  SECTION("a failed load") { script.options = {{"fail_load", "true"}}; }
  SECTION("a bad option") {
    script.options = {{"bytes", "many"}};
    expected = Code::kInvalidArgument;
    part = "option bytes: \"many\"";
  }
  SECTION("an unknown stage") {
    script.stage = "wan.poet";
    expected = Code::kNotFound;
    part = "is none of: noop, wan.";
  }
  SECTION("an unknown device") {
    script.device = "abacus";
    expected = Code::kInvalidArgument;
    part = "neither \"cpu\" nor";
  }
  SECTION("more memory than there is") {
    script.options = {{"weight_bytes", "1000000000000"}};
    expected = Code::kResourceExhausted;
    part = "1000000000000 bytes";
  }
  ScriptedWorker& worker = supervisor.start(script);
  worker.load();
  const Event fatal = worker.wait([](const Event& event) { return event.has_fatal(); });
  CHECK(fatal.fatal().status().code() == static_cast<int>(expected));
  CHECK(fatal.fatal().status().message().find(part) != std::string::npos);
  const ExitStatus exit = worker.exit();
  CHECK_FALSE(exit.signaled);
  CHECK(exit.value == 1);
}

TEST_CASE("worker process: ends with its supervisor", "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& worker = supervisor.startReady({.options = {{"steps", "1000000"}, {"step_ms", "5"}}});
  worker.run(noopCommand("a", "source", 0, 0, 0));
  worker.wait(isProgress);
  int code = 3;
  SECTION("the inherited socket ends") { worker.closeLifeline(); }
  SECTION("the stream ends") { supervisor.stopServer(); }
  SECTION("the grace period is over before a step is") {
    ScriptedWorker& slow =
        supervisor.startReady({.group = "slow", .options = {{"step_ms", "60000"}, {"allocate_bytes", "1000000000"}}});
    slow.run(noopCommand("b", "source", 0, 0, 0));
    // What it takes in its step shows that it is inside.
    slow.wait([](const Event& event) { return event.heartbeat().resident_bytes() > 1'000'000'000; });
    slow.shutdown(200);
    CHECK(slow.exit().value == 4);
    worker.shutdown();
    code = 0;
  }
  CHECK(worker.exit().value == code);
}

TEST_CASE("worker process: tells of a signal to end, and goes on", "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& worker = supervisor.startReady({.options = {{"steps", "20"}, {"step_ms", "20"}}});
  worker.run(noopCommand("a", "source", 0, 0, 0));
  worker.wait(isProgress);
  for (const int number : {SIGTERM, SIGINT}) {
    REQUIRE(worker.process.signal(number).ok());
    worker.wait([number](const Event& event) { return event.signalled().signal_number() == number; });
  }
  worker.wait([](const Event& event) { return event.progress().step() == 20; });
  worker.shutdown();
  CHECK(worker.exit().value == 0);
}

// ---- two workers and the channel between them ---------------------------------------------------------------

TEST_CASE("worker process: jobs flow through two workers, consumers told first", "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& source =
      supervisor.startReady({.group = "source", .options = {{"bytes", "3000000"}, {"leaves", "3"}}});
  ScriptedWorker& sink = supervisor.startReady({.group = "sink"});
  supervisor.connect(source, sink, 1);
  constexpr uint64_t kJobs = 12;
  for (uint64_t n = 0; n < kJobs; ++n) {
    const std::string job = "job" + std::to_string(n);
    media::FrameRing ring = makeRing();
    sink.sendDescriptor(100 + n, ring.fd());
    auto command = noopCommand(job, "sink", 1, 0, n);
    command.set_frame_ring_id(100 + n);
    sink.run(command);
    source.run(noopCommand(job, "source", 0, 1, n));
    media::FrameRingReader reader = readerOf(ring);
    const int level = static_cast<int>(n);
    CHECK(drain(reader) == std::vector<int>{level, level + 1, level + 2, level + 3});
    const Event made = source.end(job);
    REQUIRE(codeOf(made) == Code::kOk);
    CHECK(made.done().outputs(0).tensors_size() == 3);
    CHECK(made.done().outputs(0).bytes() == 3000000);
    const Event shown = sink.end(job);
    REQUIRE(codeOf(shown) == Code::kOk);
    CHECK(shown.done().frames() == 4);
  }
  const Event transfer = source.wait([](const Event& event) { return event.has_transfer(); }, kJobs - 1);
  CHECK(transfer.transfer().bytes() == 3000000);
  CHECK(transfer.transfer().pooled());
  REQUIRE(transfer.edges_size() == 1);
  CHECK(transfer.edges(0).slots_in_use() == 0);
  const Event last = sink.end("job" + std::to_string(kJobs - 1));
  REQUIRE(last.edges_size() == 1);
  CHECK(last.edges(0).bytes_read() == kJobs * 3000000);
  sink.wait([](const Event& event) {
    return event.has_heartbeat() && event.edges_size() == 1 && event.edges(0).bytes_read() == kJobs * 3000000;
  });
  sink.shutdown();
  source.shutdown();
  CHECK(sink.exit().success());
  CHECK(source.exit().success());
  for (const auto& entry : std::filesystem::directory_iterator(supervisor.directory())) {
    CHECK(entry.path().filename() == "control.sock");
  }
}

TEST_CASE("worker process: a cancelled producer's consumer is told, and both go on", "[worker][process][cancel]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& source =
      supervisor.startReady({.group = "source", .options = {{"steps", "100000"}, {"step_ms", "2"}}});
  ScriptedWorker& sink = supervisor.startReady({.group = "relay", .options = {}});
  supervisor.connect(source, sink, 1);
  sink.run(noopCommand("a", "relay", 1, 0, 0));
  source.run(noopCommand("a", "source", 0, 1, 0));
  source.run(noopCommand("queued", "source", 0, 1, 1));
  sink.run(noopCommand("queued", "relay", 1, 0, 1));
  source.wait(isProgress, 2);
  source.cancel("queued");
  CHECK(codeOf(source.end("queued")) == Code::kCancelled);
  source.cancel("a");
  CHECK(codeOf(source.end("a")) == Code::kCancelled);
  CHECK(codeOf(sink.end("a")) == Code::kCancelled);
  CHECK(codeOf(sink.end("queued")) == Code::kCancelled);
}

TEST_CASE("worker process: the supervisor can discard what no command will take", "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& source = supervisor.startReady({.group = "source"});
  ScriptedWorker& sink = supervisor.startReady({.group = "relay"});
  supervisor.connect(source, sink, 1);
  source.run(noopCommand("b", "source", 0, 1, 1));
  CHECK(codeOf(source.end("b")) == Code::kOk);
  ScriptedWorker::Command discard;
  *discard.mutable_discard_refs()->add_refs() = noopCommand("b", "", 1, 0, 1).inputs(0);
  discard.mutable_discard_refs()->set_sync(true);
  discard.mutable_discard_refs()->set_request_id(77);
  discard.mutable_discard_refs()->set_reason("cancelled");
  sink.send(discard);
  const Event answer = sink.wait(
      [](const Event& event) { return event.has_refs_discarded() && event.refs_discarded().request_id() == 77; });
  REQUIRE(answer.edges_size() == 1);
  REQUIRE(answer.edges(0).discarded().count("cancelled") == 1);
  CHECK(answer.edges(0).discarded().at("cancelled") == 1);
}

TEST_CASE("worker process: a producer's death fails its consumer, which serves the next epoch", "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& sink = supervisor.startReady({.group = "relay"});
  const WorkerScript crashing{.group = "source", .options = {{"crash_at_step", "0"}, {"only_prompt", "crash"}}};
  ScriptedWorker& source = supervisor.startReady(crashing);
  supervisor.connect(source, sink, 1);
  sink.run(noopCommand("a", "relay", 1, 0, 0));
  source.run(noopCommand("a", "source", 0, 1, 0, "please crash"));
  CHECK(source.exit().value == SIGSEGV);
  CHECK(codeOf(sink.end("a")) == Code::kUnavailable);
  sink.retire(1);
  sink.wait([](const Event& event) { return event.has_edge_retired() && event.edge_retired().channel_id() == 1; });

  WorkerScript again = crashing;
  again.epoch = 2;
  ScriptedWorker& respawned = supervisor.startReady(again);
  supervisor.connect(respawned, sink, 2);
  sink.run(noopCommand("b", "relay", 2, 0, 0));
  respawned.run(noopCommand("b", "source", 0, 2, 0));
  // The relay has no edge for its tensors: it received them, which is what counts here.
  CHECK(codeOf(sink.end("b")) == Code::kFailedPrecondition);
  CHECK(codeOf(respawned.end("b")) == Code::kOk);
}

TEST_CASE("worker process: SIGKILL of a producer while it publishes", "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& sink = supervisor.startReady({.group = "relay"});
  uint32_t killed_in_time = 0;
  // Until one came in time, which a busy machine may keep from us some times.
  for (uint32_t round = 0; round < 5 || (killed_in_time == 0 && round < 20); ++round) {
    ScriptedWorker& source = supervisor.startReady(
        {.group = "source", .epoch = round + 1, .options = {{"bytes", "200000000"}, {"leaves", "8"}}});
    const uint32_t channel = round + 1;
    supervisor.connect(source, sink, channel);
    const std::string job = "job" + std::to_string(round);
    sink.run(noopCommand(job, "relay", channel, 0, 0));
    source.run(noopCommand(job, "source", 0, channel, 0));
    source.wait(isProgress);  // the last step: filling and publishing 200 MB follow
    std::this_thread::sleep_for(std::chrono::milliseconds(60 * (round % 5)));
    REQUIRE(source.process.signal(SIGKILL).ok());
    source.exit();
    // FAILED_PRECONDITION: it was too late, the artifact was whole.
    const Code code = codeOf(sink.end(job));
    killed_in_time += code == Code::kUnavailable ? 1 : 0;
    CHECK((code == Code::kUnavailable || code == Code::kFailedPrecondition));
    sink.retire(channel);
    sink.wait(
        [&](const Event& event) { return event.has_edge_retired() && event.edge_retired().channel_id() == channel; });
  }
  CHECK(killed_in_time > 0);
}

TEST_CASE("worker process: an edge retired under a waiting command fails it, and the next edge serves",
          "[worker][process]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& source = supervisor.startReady({.group = "source"});
  ScriptedWorker& sink = supervisor.startReady({.group = "relay"});
  supervisor.connect(source, sink, 1);
  sink.run(noopCommand("a", "relay", 1, 0, 0));
  sink.wait([](const Event& event) { return event.has_started(); });
  sink.retire(1);
  source.retire(1);
  CHECK(codeOf(sink.end("a")) == Code::kUnavailable);
  const auto retired = [](const Event& event) { return event.has_edge_retired(); };
  sink.wait(retired);
  source.wait(retired);
  supervisor.connect(source, sink, 2);
  sink.run(noopCommand("b", "relay", 2, 0, 0));
  source.run(noopCommand("b", "source", 0, 2, 0));
  CHECK(codeOf(source.end("b")) == Code::kOk);
  CHECK(codeOf(sink.end("b")) == Code::kFailedPrecondition);  // received; no edge takes what it returns
}

TEST_CASE("worker process: frames that nobody takes, or that nobody can", "[worker][process][cancel]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& source = supervisor.startReady({.group = "source"});
  ScriptedWorker& sink = supervisor.start({.group = "sink", .options = {{"load_ms", "100"}}});
  sink.load();
  supervisor.connect(source, sink, 1);
  media::FrameRing ring = makeRing();
  sink.sendDescriptor(5, ring.fd());
  auto command = noopCommand("a", "sink", 1, 0, 0);
  command.set_frame_ring_id(5);
  sink.run(command);  // perhaps before Ready: it waits its turn
  source.run(noopCommand("a", "source", 0, 1, 0));
  const Clock::TimePoint deadline = soon();
  while (ring.framesCommitted() < 2) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  Code expected = Code::kCancelled;
  SECTION("a cancel wakes it") { sink.cancel("a"); }
  SECTION("the encoder fails") {
    ring.abort(absl::UnavailableError("the encoder died"));
    expected = Code::kUnavailable;
  }
  CHECK(codeOf(sink.end("a")) == expected);
  media::FrameRing next = makeRing();
  sink.sendDescriptor(6, next.fd());
  command = noopCommand("b", "sink", 1, 0, 1);
  command.set_frame_ring_id(6);
  sink.run(command);
  source.run(noopCommand("b", "source", 0, 1, 1));
  media::FrameRingReader reader = readerOf(next);
  CHECK(drain(reader) == std::vector<int>{1, 2, 3, 4});
}

// ---- several ranks, memory ----------------------------------------------------------------------------------

TEST_CASE("worker process: the ranks of a group stop at one step", "[worker][process][cancel]") {
  const ShmRegion gate = StepGate::createRegion().value();
  ScriptedSupervisor supervisor;
  std::vector<ScriptedWorker*> ranks;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(&supervisor.startReady({.rank = rank,
                                            .options = {{"steps", "100000"}, {"step_ms", std::to_string(1 + rank)}},
                                            .world_size = 3,
                                            .step_gate_fd = gate.fd()}));
  }
  for (ScriptedWorker* rank : ranks)
    rank->run(noopCommand("a", "source", 0, 0, 0));
  ranks[2]->wait(isProgress, 5);
  for (auto rank = ranks.rbegin(); rank != ranks.rend(); ++rank)
    (*rank)->cancel("a");
  const uint32_t step = ranks[0]->end("a").failed().step();
  CHECK(step > 5);
  for (ScriptedWorker* rank : ranks) {
    CHECK(codeOf(rank->end("a")) == Code::kCancelled);
    CHECK(rank->end("a").failed().step() == step);
  }
}

TEST_CASE("worker process: a job beyond memory_max fails alone, with the sizes", "[worker][process]") {
  constexpr uint64_t kLimit = uint64_t{3} << 30;
  ScriptedSupervisor supervisor;
  ScriptedWorker& worker = supervisor.startReady(
      {.options = {{"allocate_bytes", "4000000000"}, {"only_prompt", "big"}}, .data_bytes_max = kLimit});
  for (int round = 0; round < 3; ++round) {
    const std::string big = "big" + std::to_string(round);
    worker.run(noopCommand(big, "source", 0, 0, 0, "a big one"));
    const Event failed = worker.end(big);
    CHECK(codeOf(failed) == Code::kResourceExhausted);
    CHECK_FALSE(failed.failed().recycle());
    CHECK(failed.failed().status().message().find("its limit (memory_max) is 3072 MiB") != std::string::npos);
    const std::string small = "small" + std::to_string(round);
    worker.run(noopCommand(small, "sink", 0, 0, 0));
    CHECK(codeOf(worker.end(small)) == Code::kFailedPrecondition);  // it names no ring: the worker still answers
  }
}

}  // namespace
}  // namespace latentd::worker
