// What a stopped or killed supervisor does to work that it dispatched. The supervisor is a child, so that it can be.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/media/frame_ring.h"
#include "tests/runtime/worker/scripted_supervisor.h"
#include "tests/support/child_test_case.h"
#include "tests/support/slack.h"

namespace latentd::worker {
namespace {

using testing::ChildTestCase;

struct Dispatched {
  pid_t source;
  pid_t sink;
  char directory[64];  // what a killed supervisor cannot remove
};

// Descriptor 3: the ring that the sink fills. Descriptor 4: where it tells that all is dispatched.
TEST_CASE("supervisor child that dispatches and waits", "[.][child]") {
  ScriptedSupervisor supervisor;
  ScriptedWorker& source =
      supervisor.startReady({.group = "source", .options = {{"steps", "10"}, {"step_ms", "50"}, {"bytes", "5000000"}}});
  ScriptedWorker& sink = supervisor.startReady({.group = "sink"});
  supervisor.connect(source, sink, 1);
  sink.sendDescriptor(9, 3);
  auto command = noopCommand("a", "sink", 1, 0, 0);
  command.set_frame_ring_id(9);
  sink.run(command);
  source.run(noopCommand("a", "source", 0, 1, 0));
  source.wait([](const auto& event) { return event.has_started(); });
  Dispatched dispatched{source.process.pid(), sink.process.pid(), {}};
  supervisor.directory().copy(dispatched.directory, sizeof(dispatched.directory) - 1);
  REQUIRE(::write(4, &dispatched, sizeof(dispatched)) == sizeof(dispatched));
  sink.end("a");
  ::pause();
}

Dispatched readDispatched(int fd) {
  pollfd waited{fd, POLLIN, 0};
  REQUIRE(::poll(&waited, 1, 60'000) == 1);
  Dispatched dispatched{};
  REQUIRE(::read(fd, &dispatched, sizeof(dispatched)) == sizeof(dispatched));
  return dispatched;
}

bool endsWithin(int pidfd, std::chrono::milliseconds limit) {
  pollfd waited{pidfd, POLLIN, 0};
  return ::poll(&waited, 1, static_cast<int>(limit.count())) == 1;
}

TEST_CASE("supervisor loss: a hand-off completes while it is stopped, and its death ends the workers",
          "[worker][process]") {
  const media::FrameRing ring = media::FrameRing::create({.width = 16, .height = 8, .capacity = 2}).value();
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd told(ends[0]);
  UniqueFd tell(ends[1]);
  ChildTestCase supervisor("supervisor child that dispatches and waits", {ring.fd(), tell.get()});
  tell.reset();
  const Dispatched workers = readDispatched(told.get());
  supervisor.signal(SIGSTOP);
  const UniqueFd source(static_cast<int>(::syscall(SYS_pidfd_open, workers.source, 0)));
  const UniqueFd sink(static_cast<int>(::syscall(SYS_pidfd_open, workers.sink, 0)));
  REQUIRE(source.valid());
  REQUIRE(sink.valid());

  auto reader = media::FrameRingReader::attach(ring);
  uint32_t frames = 0;
  while (true) {
    const auto frame = reader->next(soon());
    REQUIRE(frame.ok());
    if (!frame->has_value()) break;
    ++frames;
    reader->release();
  }
  CHECK(frames == 4);
  CHECK_FALSE(endsWithin(sink.get(), std::chrono::milliseconds(0)));

  supervisor.signal(SIGKILL);
  CHECK(endsWithin(source.get(), latentd::testing::withSlack(std::chrono::seconds(1))));
  CHECK(endsWithin(sink.get(), latentd::testing::withSlack(std::chrono::seconds(1))));
  std::filesystem::remove_all(workers.directory);
}

}  // namespace
}  // namespace latentd::worker
