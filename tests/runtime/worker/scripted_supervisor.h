#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/worker.grpc.pb.h"
#include "runtime/base/child_process.h"
#include "runtime/base/child_spawner.h"
#include "runtime/base/step_gate.h"
#include "runtime/base/unix_socket.h"
#include "tests/runtime/worker/fakes.h"
#include "tests/support/temp_dir.h"

// The supervisor's side of worker.proto, driven by a test line by line, over real latent-worker processes.
namespace latentd::worker {

// What a worker is told to be.
struct WorkerScript {
  std::string group = "group";
  uint32_t rank = 0;
  uint64_t epoch = 1;
  std::string stage = "noop";
  std::map<std::string, std::string> options;
  std::string device = "cpu";
  uint32_t world_size = 1;
  int step_gate_fd = -1;
  uint64_t data_bytes_max = 0;
  uint32_t heartbeat_ms = 50;
};

// One worker process and its stream. Thread: the test's, but for what the server's thread delivers.
class ScriptedWorker {
 public:
  using Command = internal::v1::WorkerCommand;
  using Event = internal::v1::WorkerEvent;
  using Stream = grpc::ServerReaderWriter<internal::v1::WorkerCommands, internal::v1::WorkerEvents>;

  void send(const Command& command);
  // As RecordingSink.
  Event wait(const std::function<bool(const Event&)>& matches, size_t n = 0) { return events.wait(matches, n); }
  Event end(const std::string& job_id) { return events.end(job_id); }
  void sendDescriptor(uint64_t id, int fd);
  void closeLifeline() { lifeline = std::nullopt; }
  // The exit, within 20 s.
  ExitStatus exit();

  // Commands in short.
  void load();
  void openProducer(const internal::v1::ChannelSpec& spec, const std::string& path);
  void openConsumer(const internal::v1::ChannelSpec& spec, const std::vector<std::string>& paths);
  void run(const internal::v1::RunStage& command);
  void cancel(const std::string& job_id);
  void retire(uint32_t channel_id);
  void shutdown(uint32_t grace_ms = 10000);

  WorkerScript script;
  ChildProcess process;
  std::optional<UnixSocket> lifeline;
  RecordingSink events;

 private:
  friend class ScriptedSupervisor;
  Mutex mutex_;
  CondVar changed_;
  Stream* stream_ GUARDED_BY(mutex_) = nullptr;
};

class ScriptedSupervisor {
 public:
  ScriptedSupervisor();
  ~ScriptedSupervisor();

  // Spawns and waits for Register.
  ScriptedWorker& start(const WorkerScript& script);
  // start(), Load, and waits for Ready.
  ScriptedWorker& startReady(const WorkerScript& script);
  // A channel from one worker to another, open on both ends.
  void connect(ScriptedWorker& producer, ScriptedWorker& consumer, uint32_t channel_id);
  // Ends all streams, as a supervisor that exits does.
  void stopServer();
  const std::string& directory() const { return directory_.path(); }

 private:
  class Service final : public internal::v1::WorkerControl::Service {
   public:
    explicit Service(ScriptedSupervisor& owner) : owner_(owner) {}
    grpc::Status Connect(grpc::ServerContext* context, ScriptedWorker::Stream* stream) override;

   private:
    ScriptedSupervisor& owner_;
  };

  ScriptedWorker* find(const internal::v1::Register& registration, uint64_t epoch);

  const testing::TempDir directory_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  std::vector<std::unique_ptr<ScriptedWorker>> workers_ GUARDED_BY(mutex_);
  ChildSpawner spawner_;
};

// One rank to one rank, with two slots.
internal::v1::ChannelSpec channelBetween(const ScriptedWorker& producer, const ScriptedWorker& consumer,
                                         uint32_t channel_id);

// A command of the noop stage on channel numbers: 0 is none.
internal::v1::RunStage noopCommand(const std::string& job, const std::string& method, uint32_t in, uint32_t out,
                                   uint64_t sequence, const std::string& prompt = "");

}  // namespace latentd::worker
