#include "runtime/api/health_reporter.h"

#include <pthread.h>

#include <chrono>

#include "proto/api.grpc.pb.h"

namespace latentd::api {
namespace {

// Half of the shortest interval at which load balancers usually look.
constexpr std::chrono::milliseconds kInterval{500};

}  // namespace

HealthReporter::HealthReporter(grpc::HealthCheckServiceInterface& health, supervisor::JobService& jobs)
    : health_(health), jobs_(jobs) {
  // The supervisor may not answer before the server is there: until it does, nothing is served.
  set(false, false);
  thread_ = std::thread([this] { run(); });
}

HealthReporter::~HealthReporter() {
  {
    MutexLock held(mutex_);
    stopping_ = true;
    stop_requested_.notifyAll();
  }
  thread_.join();
  health_.Shutdown();
}

void HealthReporter::set(bool ready, bool live) {
  health_.SetServingStatus("", ready);
  health_.SetServingStatus(v1::Jobs::service_full_name(), ready);
  health_.SetServingStatus(v1::Admin::service_full_name(), live);
}

void HealthReporter::run() {
  pthread_setname_np(pthread_self(), "api-health");
  for (;;) {
    set(jobs_.ready().ok(), jobs_.live().ok());
    MutexLock held(mutex_);
    const auto next = std::chrono::steady_clock::now() + kInterval;
    while (!stopping_ && stop_requested_.waitUntil(mutex_, next)) {
    }
    if (stopping_) return;
  }
}

}  // namespace latentd::api
