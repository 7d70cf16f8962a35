#pragma once

#include <thread>

#include <grpcpp/health_check_service_interface.h>

#include "runtime/base/mutex.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::api {

// Keeps grpc.health.v1 in step with the supervisor: Jobs and the server as a whole serve while it is ready, Admin while
// it is live. gRPC's health service is told and does not ask, so a thread of this class looks and tells.
// Owner: Server. Thread: its own. States: reporting until destroyed; everything is NOT_SERVING afterwards.
class HealthReporter {
 public:
  HealthReporter(grpc::HealthCheckServiceInterface& health, supervisor::JobService& jobs);
  ~HealthReporter();
  HealthReporter(const HealthReporter&) = delete;
  HealthReporter& operator=(const HealthReporter&) = delete;

 private:
  void set(bool ready, bool live);
  void run();

  grpc::HealthCheckServiceInterface& health_;
  supervisor::JobService& jobs_;
  Mutex mutex_;
  CondVar stop_requested_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace latentd::api
