#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/step_gate.h"
#include "runtime/worker/stage_run.h"
#include "runtime/worker/worker_device.h"

namespace latentd::worker {

// Runs the stage commands of one worker, in order, one at a time, on a thread of its own: the only one that ever calls
// the stage. Nothing here blocks the caller: commands that cannot run end at once.
// Owner: the worker. Thread: any, but the constructor and destructor on one.
// States: starting (load, warm-up) -> running -> closed; or start failed. After a failure that left the process unclean
// (recycle) every further command ends UNAVAILABLE.
// Failure: of a command, in its StageFailed; of the start, through on_start_failed.
class StageExecutor {
 public:
  // More than a supervisor ever sends ahead; twice as many runs fit the step gate's window, which it must not lap.
  static constexpr size_t kCommandsMax = 32;
  static_assert(2 * kCommandsMax <= StepGate::kRunWindow);

  // What a start makes.
  struct Started {
    std::unique_ptr<mesh::Mesh> mesh;  // null: alone; the stage uses it
    std::unique_ptr<stages::Stage> stage;
  };
  // Meets the other ranks, makes, loads and warms up the stage; runs on the executor's thread and tells the supervisor
  // itself. What was made before a failure stays in `started`.
  using StartUp = std::function<GuardedResult(StepGate& gate, Started& started)>;
  using StartFailed = std::function<void(const GuardedResult&)>;

  struct Environment {
    ChannelTable* channels = nullptr;  // these four outlive the executor
    EventSink* events = nullptr;
    DescriptorInbox* descriptors = nullptr;
    const WorkerDevice* device = nullptr;
    uint32_t ranks = 1;            // of the group
    uint32_t trace_spans_max = 0;  // of a command
  };

  StageExecutor(const Environment& environment, StepGate gate, StartUp start_up, StartFailed on_start_failed);
  // Ends what is queued and waits for what runs.
  ~StageExecutor();

  void submit(internal::v1::RunStage message);
  void cancel(const std::string& job_id);
  // Ends queued commands that were cancelled and that the lead has stopped since. For every rank but the lead, whose
  // decision they waited for; to be called from time to time.
  void endStopped();
  // The running command computes and has not moved within its stall time-out.
  bool stalled() const { return stall_.stalled(std::chrono::steady_clock::now()); }

  // Ends all queued commands with `reason` and cancels the running one.
  void close(const Status& reason);
  // False if the thread is still inside the stage at the deadline.
  bool join(Clock::TimePoint deadline);

 private:
  using Commands = std::deque<std::unique_ptr<StageCommand>>;

  void run();
  void failStart(const GuardedResult& result, mesh::Mesh* mesh);
  void runCommands(stages::Stage& stage);
  std::unique_ptr<StageCommand> next();
  void execute(const StageCommand& command, stages::Stage& stage);
  void markCancelled(const std::string& job_id) REQUIRES(mutex_);
  Commands takeStopped() REQUIRES(mutex_);
  void endAll(const Commands& commands, const Status& reason);

  StepGate gate_;
  StallClock stall_;
  RunEnvironment environment_;
  const WorkerDevice& device_;
  const StartUp start_up_;
  const StartFailed on_start_failed_;

  Mutex mutex_;
  CondVar changed_;
  Commands queue_ GUARDED_BY(mutex_);
  uint64_t commands_seen_ GUARDED_BY(mutex_) = 0;
  std::optional<std::pair<std::string, std::stop_source>> running_ GUARDED_BY(mutex_);  // job id, its cancellation
  Status refusal_ GUARDED_BY(mutex_);                                                   // not OK: commands end with it
  bool closed_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;

  // The executor's thread only.
  std::unique_ptr<channel::Allocator> receive_buffers_;
  uint64_t probe_bytes_ = 0;  // what the process must be able to get after it ran out of memory
  std::thread thread_;        // last: it uses all of the above
};

}  // namespace latentd::worker
