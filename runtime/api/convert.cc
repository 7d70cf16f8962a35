#include "runtime/api/convert.h"

#include <string>

#include "proto/rpc_status.pb.h"
#include "runtime/base/status_field.h"

namespace latentd::api {
namespace {

constexpr const char* kBadRequestUrl = "type.googleapis.com/google.rpc.BadRequest";

std::string badField(const Status& status, const std::string& field) {
  internal::v1::BadRequest request;
  request.add_field_violations()->set_field(field);
  request.mutable_field_violations(0)->set_description(messageOf(status));
  internal::v1::RpcStatus details;
  details.set_code(static_cast<int32_t>(status.code()));
  details.set_message(messageOf(status));
  google::protobuf::Any& detail = *details.add_details();
  detail.set_type_url(kBadRequestUrl);
  detail.set_value(request.SerializeAsString());
  return details.SerializeAsString();
}

}  // namespace

grpc::Status toGrpc(const Status& status) {
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string field = fieldOf(status);
  if (field.empty()) return grpc::Status(code, messageOf(status));
  return grpc::Status(code, messageOf(status), badField(status, field));
}

}  // namespace latentd::api
