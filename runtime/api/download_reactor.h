#pragma once

#include <grpcpp/grpcpp.h>

#include "proto/api.grpc.pb.h"
#include "runtime/api/byte_stream.h"
#include "runtime/api/call_metrics.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::api {

// One Download stream: reads the next chunk when the client has taken the one before, holding no thread meanwhile.
// Owner: itself, from the handler's return until OnDone. Thread: gRPC's, one at a time. States: open -> finished ->
// done. Failure: a file that ends early is DATA_LOSS; a client that goes away ends the stream.
class DownloadReactor final : public ByteStream {
 public:
  DownloadReactor(StreamLimit::Lease lease, CallMetrics call, metrics::Counter& bytes_sent, supervisor::ResultFile file,
                  uint64_t offset);

  // Called once, before the handler returns this.
  void start() { writeNext(); }

  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void writeNext();
  void finish(const grpc::Status& status);

  const StreamLimit::Lease lease_;
  CallMetrics call_;
  metrics::Counter& bytes_sent_;
  const supervisor::ResultFile file_;
  uint64_t offset_;
  v1::DownloadChunk chunk_;
  grpc::StatusCode code_ = grpc::StatusCode::OK;
};

}  // namespace latentd::api
