#pragma once

#include <chrono>

#include "proto/api.grpc.pb.h"
#include "runtime/metrics/component_metrics.h"
#include "runtime/supervisor/job_service.h"

namespace latentd::api {

// latentd.v1.Admin over the supervisor.
// Owner: Server. Thread: gRPC's, any number at once. Failure: statuses as proto/api.proto documents them.
class AdminService final : public v1::Admin::WithRawCallbackMethod_GetFlightRecords<v1::Admin::CallbackService> {
 public:
  // drain_deadline: for a Drain that names none.
  AdminService(supervisor::JobService& jobs, metrics::ApiMetrics& metrics, std::chrono::milliseconds drain_deadline)
      : jobs_(jobs), metrics_(metrics), drain_deadline_(drain_deadline) {}

  grpc::ServerUnaryReactor* GetTopology(grpc::CallbackServerContext* context, const v1::GetTopologyRequest* request,
                                        v1::Topology* response) override;
  grpc::ServerUnaryReactor* GetEdges(grpc::CallbackServerContext* context, const v1::GetEdgesRequest* request,
                                     v1::GetEdgesResponse* response) override;
  // Its request has a text: message_bytes.h says why it comes as bytes.
  grpc::ServerUnaryReactor* GetFlightRecords(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context, const v1::GetVersionRequest* request,
                                       v1::Version* response) override;

 private:
  supervisor::JobService& jobs_;
  metrics::ApiMetrics& metrics_;
  const std::chrono::milliseconds drain_deadline_;
};

}  // namespace latentd::api
