#pragma once

#include <deque>
#include <memory>

#include <grpcpp/grpcpp.h>

#include "proto/api.grpc.pb.h"
#include "runtime/api/byte_stream.h"
#include "runtime/api/call_metrics.h"
#include "runtime/base/mutex.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::api {

// One Watch stream: hands a job's changes to a client at the client's pace, holding no thread meanwhile.
// Owner: itself, from the handler's return until OnDone. Thread: the supervisor's loop offers, gRPC's threads write;
// a mutex between them. States: open -> finished (terminal state written, or the client went away) -> done.
// Failure: a client that reads slowly misses progress inside a state, never a state; what waits for it is bounded.
class WatchReactor final : public ByteStream {
 public:
  WatchReactor(StreamLimit::Lease lease, CallMetrics call, metrics::Counter& skipped);

  // Called once, before the handler returns this.
  void start(supervisor::JobService& jobs, const JobId& id);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void offer(const v1::Job& job);
  void writeNext() REQUIRES(mutex_);
  void finish(const grpc::Status& status) REQUIRES(mutex_);

  const StreamLimit::Lease lease_;
  CallMetrics call_;
  metrics::Counter& skipped_;

  Mutex mutex_;
  std::deque<v1::Job> pending_ GUARDED_BY(mutex_);
  v1::Job writing_job_;  // the last one handed over
  bool writing_ GUARDED_BY(mutex_) = false;
  bool cancelled_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  grpc::StatusCode code_ GUARDED_BY(mutex_) = grpc::StatusCode::OK;

  std::unique_ptr<supervisor::JobService::Watch> watch_;  // last: no offer() once it is gone
};

}  // namespace latentd::api
