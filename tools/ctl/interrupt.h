#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/signal_filter.h"
#include "runtime/base/unique_fd.h"

namespace latentd::ctl {

// Turns Ctrl-C (and SIGTERM, SIGHUP) into calls of a handler on a thread of its own. Until there is a handler a signal
// ends the process as usual.
// Owner: the command, before its Client: the threads of gRPC must inherit the blocked signals. Thread: its own.
class Interrupt {
 public:
  // `clock` outlives it.
  explicit Interrupt(const Clock& clock);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The handler gets the number of each signal that counts (SignalFilter). Null: none. Returns when no call of the old
  // one runs.
  void setHandler(std::function<void(int)> handler);

 private:
  void run();
  void deliver(int signal_number);

  const Clock& clock_;
  sigset_t before_{};
  UniqueFd signals_;
  UniqueFd stop_;
  Mutex mutex_;
  std::function<void(int)> handler_ GUARDED_BY(mutex_);
  SignalFilter filter_;  // its own thread's
  std::thread thread_;   // last: it uses all of the above
};

}  // namespace latentd::ctl
