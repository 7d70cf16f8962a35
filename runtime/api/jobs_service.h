#pragma once

#include "proto/api.grpc.pb.h"
#include "runtime/api/call_metrics.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::api {

// latentd.v1.Jobs over the supervisor. Unary calls run on gRPC's thread, since JobService never waits for a worker;
// streams are reactors that hold no thread.
// Owner: Server. Thread: gRPC's, any number at once. Failure: statuses as proto/api.proto documents them.
class JobsService final : public v1::Jobs::WithRawCallbackMethod_Submit<v1::Jobs::CallbackService> {
 public:
  JobsService(supervisor::JobService& jobs, metrics::ApiMetrics& metrics);

  // Takes bytes: a prompt that is not UTF-8 would otherwise be answered UNIMPLEMENTED by gRPC, without a message.
  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                v1::Job* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                 v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
                                   v1::Job* response) override;
  grpc::ServerWriteReactor<v1::Job>* Watch(grpc::CallbackServerContext* context,
                                           const v1::WatchJobRequest* request) override;
  grpc::ServerWriteReactor<v1::DownloadChunk>* Download(grpc::CallbackServerContext* context,
                                                        const v1::DownloadRequest* request) override;
  // Counts as a download.
  grpc::ServerWriteReactor<v1::TraceTrack>* GetTrace(grpc::CallbackServerContext* context,
                                                     const v1::GetTraceRequest* request) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context, const v1::DeleteJobRequest* request,
                                   v1::DeleteJobResponse* response) override;

 private:
  StatusOr<grpc::ByteBuffer> submit(const grpc::ByteBuffer& bytes);
  StatusOr<v1::ListJobsResponse> listBounded(v1::ListJobsRequest request);

  supervisor::JobService& jobs_;
  metrics::ApiMetrics& metrics_;
  StreamLimit watches_;
  StreamLimit downloads_;
};

}  // namespace latentd::api
