#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::api {

struct ServerOptions {
  std::string host = "127.0.0.1";               // an address of this host, IPv6 without brackets
  uint16_t port = 0;                            // 0: any free one
  std::chrono::milliseconds drain_deadline{0};  // for a Drain that names none
};

// The daemon's public gRPC port: Jobs and Admin, grpc.health.v1 (following JobService's ready and live) and server
// reflection.
// Owner: the main; `jobs` and `metrics` outlive it. Thread: any; start() before other threads build gRPC servers, since
// gRPC keeps its plugins in globals. States: serving -> stopped by stop() or the destructor.
// Failure: a port that is taken is RESOURCE_EXHAUSTED and names its holder.
class Server {
 public:
  static StatusOr<std::unique_ptr<Server>> start(const ServerOptions& options, supervisor::JobService& jobs,
                                                 metrics::ApiMetrics& metrics);
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;
  // "127.0.0.1:7411", "[::1]:7411".
  virtual std::string address() const = 0;
  // Refuses new calls, lets running ones end, and cancels what is left after `grace`. Idempotent.
  virtual void stop(std::chrono::milliseconds grace) = 0;
};

}  // namespace latentd::api
