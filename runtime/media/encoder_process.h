#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/child_process.h"
#include "runtime/base/child_spawner.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/status.h"

namespace latentd::media {

// One run of latent-encoder: its exit is awaited on an event loop and turned into a status that holds its last lines.
// Owner: whoever awaits it, on the loop's home thread. Thread: start() from any, the rest on the home thread.
// States: started -> watched -> ended. Failure: the destructor kills the process.
class EncoderProcess {
 public:
  // OK after exit code 0. UNAVAILABLE for a signal, named, and for a program that cannot run here; INTERNAL for any
  // other exit code.
  using Ended = std::function<void(const Status&)>;

  // The descriptors become 3, 4, ... in the process, in that order.
  static StatusOr<std::unique_ptr<EncoderProcess>> start(ChildSpawner& spawner, const std::string& executable,
                                                         std::vector<std::string> arguments,
                                                         const std::vector<int>& descriptors);
  EncoderProcess(const EncoderProcess&) = delete;
  EncoderProcess& operator=(const EncoderProcess&) = delete;
  ~EncoderProcess();

  // Calls `ended` once, from the loop; it may destroy this object.
  Status watch(EventLoop& loop, Ended ended);
  // It ends soon, and `ended` tells.
  void kill() { child_.kill(); }
  pid_t pid() const { return child_.pid(); }

 private:
  explicit EncoderProcess(ChildProcess child) : child_(std::move(child)) {}
  void readOutput();
  void onExit();
  std::string lastLines() const;
  Status statusOf(const ExitStatus& exit) const;

  ChildProcess child_;
  EventLoop* loop_ = nullptr;
  EventLoop::Watch exit_watch_;
  EventLoop::Watch output_watch_;
  Ended ended_;
  std::string output_;  // the end of what it printed
};

}  // namespace latentd::media
