#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"
#include "runtime/base/strong_id.h"
#include "runtime/base/unique_fd.h"
#include "runtime/worker/control_client.h"
#include "runtime/worker/descriptor_inbox.h"
#include "runtime/worker/edges.h"
#include "runtime/worker/event_queue.h"
#include "runtime/worker/heartbeat.h"
#include "runtime/worker/lifeline.h"
#include "runtime/worker/stage_executor.h"
#include "runtime/worker/worker_device.h"
#include "stages/stage_registry.h"

namespace latentd::worker {

// How a worker process ends, as its exit code.
enum class WorkerExit : int {
  kDone = 0,            // told to shut down
  kStartFailed = 1,     // no control stream, or the stage did not start; Fatal says why
  kUsage = 2,           // the command line
  kSupervisorLost = 3,  // its process ended, or it ended the stream
  kGraceExpired = 4,    // the shutdown did not end in time
  kOverflow = 5,        // the supervisor took no events for too long
};

struct WorkerOptions {
  std::string control_target;  // "unix:/path"
  std::string group;
  Rank rank;
  Epoch epoch;
  UniqueFd lifeline;
};

// One rank: connects to the supervisor, loads the stage that it is told, runs commands until it is told to stop, and
// never outlives its supervisor. A signal to end is told to the supervisor, which knows what it means.
//
//   thread         does
//   main           waits for the end, then takes everything down
//   control-read   commands: hands each to the executor, the edges or itself; never blocks
//   control-write  events
//   executor       the stage: load, warm-up, commands in order
//   channel        the data plane's loop
//   edges          opens and retires channels
//   service        inherited socket, signals, heartbeat, shutdown deadline
//
// Owner: the main. Thread: run() on the main thread, after SIGTERM and SIGINT were blocked.
// States: registering -> starting -> ready -> ending. Failure: the exit code, and Fatal before it where one can be
// sent.
class Worker {
 public:
  Worker(WorkerOptions options, const stages::StageRegistry& registry);
  ~Worker();

  WorkerExit run();

 private:
  struct End {
    WorkerExit exit;
    std::chrono::milliseconds grace;
  };

  Status connect();
  void onCommand(internal::v1::WorkerCommand command);
  Status load(const internal::v1::Load& load);
  StatusOr<StepGate> makeGate(const internal::v1::Load& load);
  void dispatch(internal::v1::WorkerCommand command);
  void fatal(const Status& status, bool of_peer = false);
  void requestEnd(const End& end);
  End waitForEnd();
  void takeDown(const End& end);
  // At once: there is nobody left to tell, and an orderly end may wait for peers that are gone too.
  [[noreturn]] void leave(WorkerExit exit, const std::string& why);

  const WorkerOptions options_;
  const stages::StageRegistry& registry_;
  SteadyClock clock_;
  EventQueue events_;
  DescriptorInbox descriptors_;
  LoopThread service_;
  std::unique_ptr<Lifeline> lifeline_;

  Mutex end_mutex_;
  CondVar end_changed_;
  std::optional<End> end_ GUARDED_BY(end_mutex_);

  // Held while a command is handled, so that none is when the parts are taken down.
  Mutex command_mutex_;
  bool ending_ GUARDED_BY(command_mutex_) = false;
  // Made by Load. In this order: the executor uses the edges, the heartbeat both.
  std::unique_ptr<WorkerDevice> device_;
  std::unique_ptr<Edges> edges_;
  std::unique_ptr<StageExecutor> executor_;
  std::unique_ptr<Heartbeat> heartbeat_;
  std::unique_ptr<ControlClient> control_;
};

}  // namespace latentd::worker
