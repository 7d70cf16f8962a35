#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include <grpcpp/grpcpp.h>

#include "proto/worker.grpc.pb.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/supervisor/control_link.h"

namespace latentd::supervisor {

// WorkerControl on the control socket: one stream a worker. gRPC's threads read and write; every batch of events is
// handled on the supervisor's loop, and a stream with too many unhandled events is not read on.
// Owner: Supervisor; the loop outlives it. Thread: the supervisor's loop, except what gRPC calls.
// States: stopped -> serving -> stopped. Failure: a stream that breaks is closed and told.
class WorkerService final : public ControlLink {
 public:
  WorkerService(EventLoop& loop, ControlHandler& handler);
  ~WorkerService() override;

  // Listens on a Unix socket that does not exist yet. INVALID_ARGUMENT when the path is too long.
  Status start(const std::string& socket_path);
  // Cancels the streams that are left, at once; their ends are told while the loop still runs.
  void stop();

  bool send(ConnectionId connection, internal::v1::WorkerCommand command) override;
  void close(ConnectionId connection, const Status& status) override;

 private:
  class Stream;
  class Service;

  std::shared_ptr<Stream> find(ConnectionId connection);

  EventLoop& loop_;
  ControlHandler& handler_;
  std::unique_ptr<Service> service_;
  Mutex mutex_;
  uint64_t next_connection_ GUARDED_BY(mutex_) = 1;
  // Shared with gRPC, which drops its share when the stream is done.
  std::unordered_map<ConnectionId, std::shared_ptr<Stream>> streams_ GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;  // last: its threads use all of the above
};

}  // namespace latentd::supervisor
