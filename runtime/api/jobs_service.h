#pragma once

#include "proto/api.grpc.pb.h"
#include "runtime/api/call_metrics.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::api {

// Every method takes and gives bytes: message_bytes.h says why.
using RawJobsService = v1::Jobs::WithRawCallbackMethod_Submit<
    v1::Jobs::WithRawCallbackMethod_Get<v1::Jobs::WithRawCallbackMethod_List<v1::Jobs::WithRawCallbackMethod_Cancel<
        v1::Jobs::WithRawCallbackMethod_Watch<v1::Jobs::WithRawCallbackMethod_Download<
            v1::Jobs::WithRawCallbackMethod_GetTrace<v1::Jobs::WithRawCallbackMethod_Delete<v1::Jobs::Service>>>>>>>>;

// latentd.v1.Jobs over the supervisor. Unary calls run on gRPC's thread, since JobService never waits for a worker;
// streams are reactors that hold no thread.
// Owner: Server. Thread: gRPC's, any number at once. Failure: statuses as proto/api.proto documents them.
class JobsService final : public RawJobsService {
 public:
  JobsService(supervisor::JobService& jobs, metrics::ApiMetrics& metrics);

  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Stream = grpc::ServerWriteReactor<grpc::ByteBuffer>;

  grpc::ServerUnaryReactor* Submit(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerUnaryReactor* Get(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerUnaryReactor* List(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerUnaryReactor* Cancel(Context* context, const Bytes* request, Bytes* response) override;
  Stream* Watch(Context* context, const Bytes* request) override;
  Stream* Download(Context* context, const Bytes* request) override;
  // Counts as a download.
  Stream* GetTrace(Context* context, const Bytes* request) override;
  grpc::ServerUnaryReactor* Delete(Context* context, const Bytes* request, Bytes* response) override;

 private:
  StatusOr<Stream*> openWatch(CallMetrics call, const Bytes& request);
  StatusOr<Stream*> openDownload(CallMetrics call, const Bytes& request);
  StatusOr<Stream*> openTrace(CallMetrics call, const Bytes& request);
  StatusOr<v1::ListJobsResponse> listBounded(v1::ListJobsRequest request);

  supervisor::JobService& jobs_;
  metrics::ApiMetrics& metrics_;
  StreamLimit watches_;
  StreamLimit downloads_;
};

}  // namespace latentd::api
