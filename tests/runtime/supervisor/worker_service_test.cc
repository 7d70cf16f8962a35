#include "runtime/supervisor/worker_service.h"

#include <optional>
#include <vector>

#include "runtime/supervisor/limits.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::supervisor {
namespace {

namespace wire = internal::v1;
using std::chrono::seconds;

// Far above what a loaded machine needs.
constexpr seconds kPatience{20};

class Recorder final : public ControlHandler {
 public:
  void onEvents(ConnectionId connection, const wire::WorkerEvents& batch) override {
    const MutexLock held(mutex_);
    connection_ = connection;
    ++batches_;
    for (const wire::WorkerEvent& event : batch.events())
      epochs_.push_back(event.epoch());
    changed_.notifyAll();
  }
  void onClosed(ConnectionId) override {
    const MutexLock held(mutex_);
    closed_ = true;
    changed_.notifyAll();
  }

  // Epochs of the first so many events, which number them here.
  std::vector<uint64_t> waitEvents(size_t count) {
    const MutexLock held(mutex_);
    while (epochs_.size() < count)
      REQUIRE(changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kPatience));
    return epochs_;
  }
  void waitClosed() {
    const MutexLock held(mutex_);
    while (!closed_)
      REQUIRE(changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kPatience));
  }
  ConnectionId connection() {
    const MutexLock held(mutex_);
    return *connection_;
  }
  int batches() {
    const MutexLock held(mutex_);
    return batches_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<ConnectionId> connection_ GUARDED_BY(mutex_);
  std::vector<uint64_t> epochs_ GUARDED_BY(mutex_);
  int batches_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

wire::WorkerEvents eventsOf(uint64_t first, uint64_t last) {
  wire::WorkerEvents batch;
  for (uint64_t number = first; number <= last; ++number)
    batch.add_events()->set_epoch(number);
  return batch;
}

struct Fixture {
  Fixture() {
    const std::string path = folder.file("control");
    REQUIRE(service.start(path).ok());
    const auto channel = grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials());
    stub = wire::WorkerControl::NewStub(channel);
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    stream = stub->Connect(&context);
  }
  ~Fixture() {
    context.TryCancel();
    service.stop();
  }

  // All of them until one is not taken; whether all were.
  bool sendAll(const std::vector<wire::WorkerCommand>& commands) {
    bool taken = true;
    loop.loop().runAndWait([&] {
      for (const wire::WorkerCommand& command : commands)
        taken = taken && service.send(recorder.connection(), command);
    });
    return taken;
  }

  const testing::TempDir folder;
  SteadyClock clock;
  LoopThread loop{clock, "test"};
  Recorder recorder;
  WorkerService service{loop.loop(), recorder};
  std::unique_ptr<wire::WorkerControl::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<wire::WorkerEvents, wire::WorkerCommands>> stream;
};

TEST_CASE("worker service: events come in order, each batch in one turn of the loop", "[supervisor]") {
  Fixture fixture;
  REQUIRE(fixture.stream->Write(eventsOf(1, 3)));
  REQUIRE(fixture.stream->Write(eventsOf(4, 4)));
  REQUIRE(fixture.stream->Write(eventsOf(5, 200)));
  const std::vector<uint64_t> epochs = fixture.recorder.waitEvents(200);
  REQUIRE(epochs.size() == 200);
  for (uint64_t number = 1; number <= 200; ++number)
    CHECK(epochs[number - 1] == number);
  CHECK(fixture.recorder.batches() == 3);
}

TEST_CASE("worker service: commands come in order, and those that waited come together", "[supervisor]") {
  Fixture fixture;
  REQUIRE(fixture.stream->Write(eventsOf(1, 1)));
  fixture.recorder.waitEvents(1);
  // More bytes than the stream's window holds, so that they wait for the reader, as for a worker that is busy.
  constexpr uint64_t kCommands = 500;
  std::vector<wire::WorkerCommand> commands(kCommands);
  for (uint64_t number = 0; number < kCommands; ++number) {
    commands[number].mutable_discard_refs()->set_request_id(number);
    commands[number].mutable_discard_refs()->set_reason(std::string(1024, 'x'));
  }
  REQUIRE(fixture.sendAll(commands));
  fixture.service.close(fixture.recorder.connection(), absl::AbortedError("enough"));
  uint64_t messages = 0;
  uint64_t next = 0;
  wire::WorkerCommands batch;
  while (fixture.stream->Read(&batch)) {
    ++messages;
    for (const wire::WorkerCommand& command : batch.commands())
      CHECK(command.discard_refs().request_id() == next++);
  }
  CHECK(next == kCommands);
  CHECK(messages < kCommands);
  CHECK(fixture.stream->Finish().error_code() == grpc::StatusCode::ABORTED);
  fixture.recorder.waitClosed();
}

TEST_CASE("worker service: a worker that does not read is told on once its queue is full", "[supervisor]") {
  Fixture fixture;
  REQUIRE(fixture.stream->Write(eventsOf(1, 1)));
  fixture.recorder.waitEvents(1);
  wire::WorkerCommand command;
  command.mutable_discard_refs()->set_reason(std::string(size_t{64} << 10, 'x'));
  // What the socket and the windows hold besides is some hundred of them at most.
  CHECK_FALSE(fixture.sendAll(std::vector<wire::WorkerCommand>(kCommandsQueuedMax + 1000, command)));
}

}  // namespace
}  // namespace latentd::supervisor
