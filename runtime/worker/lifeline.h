#pragma once

#include <functional>
#include <memory>

#include "runtime/base/event_loop.h"
#include "runtime/base/unix_socket.h"
#include "runtime/worker/descriptor_inbox.h"

namespace latentd::worker {

// The inherited socket: its end means that the supervisor is gone; its messages are an id (8 bytes, native order) with
// one descriptor. Also listens for SIGTERM and SIGINT, which the main must have blocked in every thread.
// Owner: the worker. Thread: callbacks come on the loop. States: watching until destroyed.
// Failure: a malformed message is logged and dropped; the command that waits for its descriptor fails.
class Lifeline {
 public:
  struct Handlers {
    std::function<void()> on_supervisor_lost;
    std::function<void(int signal)> on_signal;
  };

  static StatusOr<std::unique_ptr<Lifeline>> watch(UniqueFd socket, DescriptorInbox& inbox, EventLoop& loop,
                                                   Handlers handlers);
  ~Lifeline();

 private:
  Lifeline(UniqueFd socket, UniqueFd signals, DescriptorInbox& inbox, EventLoop& loop, Handlers handlers);
  Status start();
  void onSocket();
  void onSignal();

  UnixSocket socket_;
  UniqueFd signals_;
  DescriptorInbox& inbox_;
  EventLoop& loop_;
  const Handlers handlers_;
  EventLoop::Watch socket_watch_;
  EventLoop::Watch signal_watch_;
};

}  // namespace latentd::worker
