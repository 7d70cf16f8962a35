#pragma once

#include <string>

#include "proto/worker.pb.h"
#include "runtime/base/status.h"
#include "runtime/base/strong_id.h"

namespace latentd::supervisor {

// One worker's stream, from its opening to its end; never used again.
using ConnectionId = StrongId<struct ConnectionIdTag, uint64_t>;

// What comes from workers. Called on the supervisor's loop, in order for each connection.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  // What the worker sent together, at least one event.
  virtual void onEvents(ConnectionId connection, const internal::v1::WorkerEvents& batch) = 0;
  // The last call for this connection.
  virtual void onClosed(ConnectionId connection) = 0;
};

// The way to workers. Thread: the supervisor's loop. Calls for a connection that has ended do nothing.
class ControlLink {
 public:
  virtual ~ControlLink() = default;
  // In order. False when too much waits already: the worker does not read.
  virtual bool send(ConnectionId connection, internal::v1::WorkerCommand command) = 0;
  // Ends the stream with this status once what was sent before is written.
  virtual void close(ConnectionId connection, const Status& status) = 0;
};

}  // namespace latentd::supervisor
