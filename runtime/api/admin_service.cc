#include "runtime/api/admin_service.h"

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/api/unary.h"
#include "runtime/base/status_field.h"
#include "runtime/base/version.h"

namespace latentd::api {
namespace {

// A month: longer than any job, and far from what a sum with a point in time could overflow.
constexpr int64_t kDrainSecondsMax = 30LL * 24 * 3600;
constexpr int32_t kNanosMax = 999'999'999;

// The time a drain may take, `absent` when the request names none.
StatusOr<std::chrono::milliseconds> drainDeadline(const v1::DrainRequest& request, std::chrono::milliseconds absent) {
  if (!request.has_deadline()) return absent;
  const google::protobuf::Duration& deadline = request.deadline();
  const bool valid = deadline.seconds() >= 0 && deadline.seconds() <= kDrainSecondsMax && deadline.nanos() >= 0 &&
                     deadline.nanos() <= kNanosMax;
  if (!valid) {
    const Status refused = absl::InvalidArgumentError(
        "deadline = " + std::to_string(deadline.seconds()) + " s " + std::to_string(deadline.nanos()) +
        " ns: must be 0 to 2592000 s (30 days); leave it out for the configured one");
    return atField(refused, "deadline");
  }
  return std::chrono::seconds(deadline.seconds()) + std::chrono::milliseconds(deadline.nanos() / 1'000'000);
}

}  // namespace

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

grpc::ServerUnaryReactor* AdminService::GetFlightRecords(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  const CallMetrics call(metrics_, "GetFlightRecords");
  return answerUnary<v1::GetFlightRecordsRequest>(
      context, call, *request, response, [&](const auto& parsed) { return jobs_.flightRecords(parsed.group()); });
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
