#pragma once

#include <grpcpp/grpcpp.h>

#include "runtime/api/call_metrics.h"
#include "runtime/api/convert.h"
#include "runtime/api/message_bytes.h"
#include "runtime/base/status.h"

namespace latentd::api {

// The base of our streams: messages that leave as bytes, as the services take them.
// Owner: itself, from the handler's return until OnDone. Thread: as its derived class says; one write at a time.
// Failure: as gRPC's own reactor.
class ByteStream : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 protected:
  // OnWriteDone follows; the message is free at once.
  template <class Message>
  void write(const Message& message) {
    bytes_ = toBytes(message);
    StartWrite(&bytes_);
  }

 private:
  grpc::ByteBuffer bytes_;
};

// Ends a stream before it began.
class RefusedStream final : public ByteStream {
 public:
  RefusedStream(CallMetrics call, const Status& status) {
    const grpc::Status refusal = toGrpc(status);
    call.ended(refusal.error_code());
    Finish(refusal);
  }
  void OnDone() override { delete this; }
};

}  // namespace latentd::api
