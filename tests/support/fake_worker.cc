// A worker without a stage: speaks proto/worker.proto, computes nothing, and misbehaves where a script says so.
//
// The script is the file that FAKE_WORKER_SCRIPT names: lines "GROUP RANK EPOCH POINT ACTION", EPOCH may be *.
// POINT: start, load, warm-up, open, idle, run, publish. ACTION: exit (code 3), segv, stop (SIGSTOP), mute (nothing
// more is sent, heartbeats included), hang (only heartbeats), fatal (says why, then exits), fail, recycle
// (StageFailed). Options of the stage: step_ms, steps (0: the job's), refuse_open. It counts 1 KiB of each input, and
// tells it with its answers alone.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "proto/worker.grpc.pb.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace latentd {
namespace {

namespace wire = internal::v1;
using std::chrono::milliseconds;

// Longer than any test's deadline: the test ends the process.
constexpr std::chrono::minutes kForever{10};
constexpr uint64_t kInputBytes = 1024;

void waitForEver() { poll(nullptr, 0, static_cast<int>(milliseconds(kForever).count())); }

class FakeWorker {
 public:
  explicit FakeWorker(std::map<std::string, std::string> flags) : flags_(std::move(flags)) {
    std::ifstream script(std::getenv("FAKE_WORKER_SCRIPT") == nullptr ? "" : std::getenv("FAKE_WORKER_SCRIPT"));
    std::string group, rank, epoch, point, action;
    while (script >> group >> rank >> epoch >> point >> action) {
      if (group == flags_["--group"] && rank == flags_["--rank"] && (epoch == "*" || epoch == flags_["--epoch"])) {
        actions_[point] = action;
      }
    }
  }

  int run() {
    std::thread([fd = std::stoi(flags_["--lifeline-fd"])] { watchLifeline(fd); }).detach();
    std::printf("fake worker starts\n");
    std::fflush(stdout);
    reach("start");
    stub_ = wire::WorkerControl::NewStub(grpc::CreateChannel(flags_["--control"], grpc::InsecureChannelCredentials()));
    stream_ = stub_->Connect(&context_);
    wire::WorkerEvent event;
    event.mutable_register_()->set_group(flags_["--group"]);
    event.mutable_register_()->set_rank(static_cast<uint32_t>(std::stoul(flags_["--rank"])));
    event.mutable_register_()->set_pid(getpid());
    send(std::move(event));
    std::thread([this] { execute(); }).detach();
    wire::WorkerCommands batch;
    while (stream_->Read(&batch)) {
      for (const wire::WorkerCommand& command : batch.commands())
        handle(command);
    }
    return 0;
  }

 private:
  // Frame rings arrive here too; nobody needs them.
  static void watchLifeline(int fd) {
    char byte[64];
    while (true) {
      pollfd entry{fd, POLLIN, 0};
      if (poll(&entry, 1, -1) == 1 && recv(fd, byte, sizeof(byte), 0) == 0) _exit(9);
    }
  }

  void send(wire::WorkerEvent event) {
    event.set_epoch(std::stoull(flags_["--epoch"]));
    wire::WorkerEvents batch;
    *batch.add_events() = std::move(event);
    const MutexLock held(send_mutex_);
    if (!mute_) stream_->Write(batch);
  }

  // True when the script says that the command at hand fails.
  bool reach(const std::string& point) {
    const auto found = actions_.find(point);
    if (found == actions_.end()) return false;
    const std::string& action = found->second;
    std::printf("fake worker: %s at %s\n", action.c_str(), point.c_str());
    std::fflush(stdout);
    if (action == "exit") _exit(3);
    if (action == "segv") {
      signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would exit instead
      raise(SIGSEGV);
    }
    if (action == "stop") raise(SIGSTOP);
    if (action == "hang") waitForEver();
    if (action == "mute") {
      const MutexLock held(send_mutex_);
      mute_ = true;
    }
    if (action == "fatal") {
      wire::WorkerEvent event;
      event.mutable_fatal()->mutable_status()->set_code(5);
      event.mutable_fatal()->mutable_status()->set_message("scripted: weights.safetensors is missing");
      send(std::move(event));
      poll(nullptr, 0, 200);  // a real one closes its stream first; here the exit must come later than the event
      _exit(1);
    }
    return action == "fail" || action == "recycle";
  }

  void handle(const wire::WorkerCommand& command) {
    wire::WorkerEvent event;
    switch (command.command_case()) {
      case wire::WorkerCommand::kLoad:
        return load(command.load());
      case wire::WorkerCommand::kOpenProducer:
        return open(command.open_producer().channel().channel_id());
      case wire::WorkerCommand::kOpenConsumer:
        return open(command.open_consumer().channel().channel_id());
      case wire::WorkerCommand::kRetireEdge:
        event.mutable_edge_retired()->set_channel_id(command.retire_edge().channel_id());
        return send(std::move(event));
      case wire::WorkerCommand::kDiscardRefs:
        event.mutable_refs_discarded()->set_request_id(command.discard_refs().request_id());
        return send(std::move(event));
      case wire::WorkerCommand::kShutdown:
        _exit(0);
      case wire::WorkerCommand::kRunStage: {
        const MutexLock held(mutex_);
        queue_.push_back(command.run_stage());
        changed_.notifyAll();
        return;
      }
      case wire::WorkerCommand::kCancel:
        return cancel(command.cancel().job_id());
      default:
        return;
    }
  }

  void load(const wire::Load& load) {
    options_ = {load.stage_options().begin(), load.stage_options().end()};
    std::thread([this, interval = milliseconds(load.heartbeat_interval_ms())] {
      while (true) {
        wire::WorkerEvent event;
        event.mutable_heartbeat()->set_resident_bytes(1 << 20);
        send(std::move(event));
        poll(nullptr, 0, static_cast<int>(interval.count()));
      }
    }).detach();
    for (const auto& [phase, point] : {std::pair("loading", "load"), {"warming up", "warm-up"}}) {
      wire::WorkerEvent event;
      event.mutable_phase()->set_phase(phase);
      event.mutable_phase()->set_fraction(0.25);
      event.mutable_phase()->set_detail("nothing");
      send(std::move(event));
      reach(point);
    }
    wire::WorkerEvent event;
    wire::Method& run = *event.mutable_ready()->add_methods();
    run.set_name("run");
    run.add_outputs("x");
    wire::Method& show = *event.mutable_ready()->add_methods();
    show.set_name("show");
    show.set_emits_frames(true);
    setLimits(*event.mutable_ready()->mutable_limits());
    send(std::move(event));
    reach("idle");
  }

  static void setLimits(v1::ModelLimits& limits) {
    limits.set_frame_step(4);
    limits.set_size_multiple(16);
    v1::JobParameters& defaults = *limits.mutable_defaults();
    defaults.set_frames(5);
    defaults.set_width(32);
    defaults.set_height(32);
    defaults.set_steps(4);
    defaults.set_guidance_scale(1);
    defaults.set_fps(8);
  }

  void open(uint32_t channel) {
    reach("open");
    wire::WorkerEvent event;
    event.mutable_edge_ready()->set_channel_id(channel);
    if (options_.count("refuse_open") != 0) {
      event.mutable_edge_ready()->mutable_status()->set_code(8);
      event.mutable_edge_ready()->mutable_status()->set_message("scripted: no memory");
    }
    send(std::move(event));
  }

  void cancel(const std::string& job) {
    bool ended = false;
    {
      const MutexLock held(mutex_);
      if (running_ == job) cancelled_ = true;
      ended = std::erase_if(queue_, [&](const wire::RunStage& stage) { return stage.job_id() == job; }) != 0;
    }
    if (ended) fail(job, absl::StatusCode::kCancelled, false);
  }

  void sendAnswer(wire::WorkerEvent event) {
    {
      const MutexLock held(mutex_);
      for (const auto& [channel, bytes] : bytes_read_) {
        wire::EdgeStats& stats = *event.add_edges();
        stats.set_channel_id(channel);
        stats.set_bytes_read(bytes);
      }
    }
    send(std::move(event));
  }

  void fail(const std::string& job, absl::StatusCode code, bool recycle) {
    wire::WorkerEvent event;
    event.mutable_failed()->set_job_id(job);
    event.mutable_failed()->mutable_status()->set_code(static_cast<int>(code));
    event.mutable_failed()->mutable_status()->set_message("scripted");
    event.mutable_failed()->set_recycle(recycle);
    sendAnswer(std::move(event));
  }

  [[noreturn]] void execute() {
    while (true) {
      wire::RunStage stage;
      {
        const MutexLock held(mutex_);
        while (queue_.empty())
          changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + kForever);
        stage = std::move(queue_.front());
        queue_.pop_front();
        running_ = stage.job_id();
        cancelled_ = false;
      }
      runStage(stage);
      const MutexLock held(mutex_);
      running_.clear();
    }
  }

  int option(const std::string& name, int absent) const {
    const auto found = options_.find(name);
    return found == options_.end() ? absent : std::stoi(found->second);
  }

  void runStage(const wire::RunStage& stage) {
    wire::WorkerEvent event;
    event.mutable_started()->set_job_id(stage.job_id());
    send(event);
    if (stage.inputs_size() != 0) {
      event.mutable_inputs_consumed()->set_job_id(stage.job_id());
      *event.mutable_inputs_consumed()->mutable_refs() = stage.inputs();
      send(event);
      const MutexLock held(mutex_);
      for (const wire::ArtifactRef& ref : stage.inputs())
        bytes_read_[ref.channel_id()] += kInputBytes;
    }
    int steps = option("steps", 1);
    if (steps == 0) steps = static_cast<int>(stage.parameters().steps());
    for (int step = 0; step < steps; ++step) {
      if (reach("run")) return fail(stage.job_id(), absl::StatusCode::kResourceExhausted, actions_["run"] == "recycle");
      poll(nullptr, 0, option("step_ms", 0));
      {
        const MutexLock held(mutex_);
        if (cancelled_) break;
      }
      event.mutable_progress()->set_job_id(stage.job_id());
      event.mutable_progress()->set_step(static_cast<uint32_t>(step + 1));
      event.mutable_progress()->set_steps(static_cast<uint32_t>(steps));
      send(event);
    }
    reach("publish");
    bool cancelled = false;
    {
      const MutexLock held(mutex_);
      cancelled = cancelled_;
    }
    if (cancelled) return fail(stage.job_id(), absl::StatusCode::kCancelled, false);
    event.mutable_done()->set_job_id(stage.job_id());
    sendAnswer(std::move(event));
  }

  std::map<std::string, std::string> flags_;
  std::map<std::string, std::string> actions_;
  std::map<std::string, std::string> options_;
  grpc::ClientContext context_;
  std::unique_ptr<wire::WorkerControl::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<wire::WorkerEvents, wire::WorkerCommands>> stream_;
  Mutex send_mutex_;
  bool mute_ GUARDED_BY(send_mutex_) = false;
  Mutex mutex_;
  CondVar changed_;
  std::deque<wire::RunStage> queue_ GUARDED_BY(mutex_);
  std::string running_ GUARDED_BY(mutex_);
  bool cancelled_ GUARDED_BY(mutex_) = false;
  std::map<uint32_t, uint64_t> bytes_read_ GUARDED_BY(mutex_);  // by channel
};

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int index = 1; index + 1 < argc; index += 2)
    flags[argv[index]] = argv[index + 1];
  auto* worker = new latentd::FakeWorker(std::move(flags));  // its detached threads outlive main
  _exit(worker->run());
}
