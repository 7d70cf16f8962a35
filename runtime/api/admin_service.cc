#include "runtime/api/admin_service.h"

#include "runtime/api/request_checks.h"
#include "runtime/api/unary.h"
#include "runtime/base/version.h"

namespace latentd::api {

grpc::ServerUnaryReactor* AdminService::GetTopology(grpc::CallbackServerContext* context, const v1::GetTopologyRequest*,
                                                    v1::Topology* response) {
  const CallMetrics call(metrics_, "GetTopology");
  return finishUnary(context, call, StatusOr<v1::Topology>(jobs_.topology()), response);
}

grpc::ServerUnaryReactor* AdminService::GetEdges(grpc::CallbackServerContext* context, const v1::GetEdgesRequest*,
                                                 v1::GetEdgesResponse* response) {
  const CallMetrics call(metrics_, "GetEdges");
  return finishUnary(context, call, StatusOr<v1::GetEdgesResponse>(jobs_.edges()), response);
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                              v1::DrainResponse* response) {
  const CallMetrics call(metrics_, "Drain");
  const StatusOr<std::chrono::milliseconds> deadline = drainDeadline(*request, drain_deadline_);
  StatusOr<v1::DrainResponse> result{v1::DrainResponse()};
  if (deadline.ok()) {
    result->set_jobs_left(jobs_.drain(*deadline));
  } else {
    result = deadline.status();
  }
  return finishUnary(context, call, std::move(result), response);
}

grpc::ServerUnaryReactor* AdminService::GetVersion(grpc::CallbackServerContext* context, const v1::GetVersionRequest*,
                                                   v1::Version* response) {
  const CallMetrics call(metrics_, "GetVersion");
  v1::Version version;
  version.set_version(std::string(kVersion));
  version.set_api(std::string(kApiVersion));
  return finishUnary(context, call, StatusOr<v1::Version>(std::move(version)), response);
}

}  // namespace latentd::api
