#pragma once

#include <grpcpp/grpcpp.h>

#include <utility>

#include "runtime/api/call_metrics.h"
#include "runtime/api/convert.h"
#include "runtime/api/message_bytes.h"
#include "runtime/base/status.h"

namespace latentd::api {

// Ends a unary call at once with what its handler returned.
template <class Response>
grpc::ServerUnaryReactor* finishUnary(grpc::CallbackServerContext* context, CallMetrics call, StatusOr<Response> result,
                                      Response* response) {
  if (result.ok()) *response = std::move(result).value();
  const grpc::Status status = toGrpc(result.status());
  call.unaryEnded(status.error_code());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// The same between bytes: handle(const Request&) returns a StatusOr of the response.
template <class Request, class Handle>
grpc::ServerUnaryReactor* answerUnary(grpc::CallbackServerContext* context, CallMetrics call,
                                      const grpc::ByteBuffer& request, grpc::ByteBuffer* response,
                                      const Handle& handle) {
  const auto answer = [&]() -> StatusOr<grpc::ByteBuffer> {
    LATENTD_ASSIGN_OR_RETURN(const Request parsed, parseRequest<Request>(request));
    LATENTD_ASSIGN_OR_RETURN(const auto result, handle(parsed));
    return toBytes(result);
  };
  return finishUnary(context, call, answer(), response);
}

}  // namespace latentd::api
