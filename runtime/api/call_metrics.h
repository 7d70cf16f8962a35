#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <grpcpp/support/status.h>

#include "runtime/metrics/component_metrics.h"

namespace latentd::api {

// One call of the public API, counted when it ends. Owner: its handler or reactor. Thread: one at a time.
class CallMetrics {
 public:
  CallMetrics(metrics::ApiMetrics& metrics, const char* method) : metrics_(metrics), method_(method) {}

  void unaryEnded(grpc::StatusCode code) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    metrics_.duration.with(method_).Observe(elapsed.count());
    ended(code);
  }
  void ended(grpc::StatusCode code) {
    metrics_.requests.with(method_, absl::StatusCodeToString(static_cast<absl::StatusCode>(code))).Increment();
  }

 private:
  metrics::ApiMetrics& metrics_;
  const char* method_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Counts the open streams of one method and bounds them. Owner: the service, which outlives its streams. Thread: any.
class StreamLimit {
 public:
  // One open stream; gives its place back when destroyed. Move only.
  class Lease {
   public:
    explicit Lease(StreamLimit* limit) : limit_(limit) {}
    Lease(Lease&& other) noexcept : limit_(std::exchange(other.limit_, nullptr)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (limit_ != nullptr) limit_->release();
    }

   private:
    StreamLimit* limit_;
  };

  StreamLimit(int64_t open_max, metrics::Gauge& gauge) : open_max_(open_max), gauge_(gauge) {}

  // Nothing when as many as allowed are open.
  std::optional<Lease> acquire() {
    if (open_.fetch_add(1) >= open_max_) {
      open_.fetch_sub(1);
      return std::nullopt;
    }
    gauge_.Increment();
    return Lease(this);
  }
  int64_t openMax() const { return open_max_; }

 private:
  void release() {
    gauge_.Decrement();
    open_.fetch_sub(1);
  }

  const int64_t open_max_;
  metrics::Gauge& gauge_;
  std::atomic<int64_t> open_{0};
};

}  // namespace latentd::api
