#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "proto/worker.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/worker/event_queue.h"

namespace latentd::worker {

// The worker's end of the control stream: one thread reads commands, another writes what the event queue holds. It
// never connects again: a worker that lost its supervisor ends.
// Owner: the worker. Thread: connect(), finish() and the destructor on one; commands are handled on the reading thread.
// States: connected -> ended. Failure: on_end is called once, with the stream's status, when the supervisor ends the
// stream or goes away.
class ControlClient {
 public:
  struct Handlers {
    std::function<void(internal::v1::WorkerCommand)> on_command;
    std::function<void(const Status&)> on_end;
  };

  // `target` is gRPC's name of the socket, "unix:/path". UNAVAILABLE when nobody listens there until the deadline.
  static StatusOr<std::unique_ptr<ControlClient>> connect(const std::string& target, EventQueue& events,
                                                          Handlers handlers, Clock::TimePoint deadline);
  ~ControlClient();

  // Closes the queue, sends what it held, and waits for the supervisor to end the stream, at most until the deadline.
  void finish(Clock::TimePoint deadline);

 private:
  ControlClient(std::shared_ptr<grpc::Channel> channel, EventQueue& events, Handlers handlers);
  void read();
  void write();

  EventQueue& events_;
  const Handlers handlers_;
  grpc::ClientContext context_;
  std::unique_ptr<internal::v1::WorkerControl::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<internal::v1::WorkerEvents, internal::v1::WorkerCommands>> stream_;
  Mutex mutex_;
  CondVar changed_;
  bool reading_ended_ GUARDED_BY(mutex_) = false;
  // Last: they use all of the above.
  std::thread writer_;
  std::thread reader_;
};

}  // namespace latentd::worker
