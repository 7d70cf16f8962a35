#pragma once

#include <grpcpp/grpcpp.h>

#include <utility>

#include "runtime/api/call_metrics.h"
#include "runtime/api/convert.h"
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

// Ends a stream before it began.
template <class Message>
class RefusedStream final : public grpc::ServerWriteReactor<Message> {
 public:
  RefusedStream(CallMetrics call, const Status& status) {
    const grpc::Status refusal = toGrpc(status);
    call.ended(refusal.error_code());
    this->Finish(refusal);
  }
  void OnDone() override { delete this; }
};

}  // namespace latentd::api
