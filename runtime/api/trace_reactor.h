#pragma once

#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "proto/api.grpc.pb.h"
#include "runtime/api/byte_stream.h"
#include "runtime/api/call_metrics.h"

namespace latentd::api {

// One GetTrace stream: writes a track when the client has taken the one before.
// Owner: itself, from the handler's return until OnDone. Thread: gRPC's, one at a time. States: open -> finished ->
// done. Failure: a client that goes away ends the stream.
class TraceReactor final : public ByteStream {
 public:
  TraceReactor(StreamLimit::Lease lease, CallMetrics call, std::vector<v1::TraceTrack> tracks)
      : lease_(std::move(lease)), call_(call), tracks_(std::move(tracks)) {}

  // Called once, before the handler returns this.
  void start() { writeNext(); }

  void OnWriteDone(bool ok) override {
    if (ok) return writeNext();
    finish(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    call_.ended(code_);
    delete this;
  }

 private:
  void writeNext() {
    if (written_ == tracks_.size()) return finish(grpc::Status::OK);
    write(tracks_[written_++]);
  }
  void finish(const grpc::Status& status) {
    code_ = status.error_code();
    Finish(status);
  }

  const StreamLimit::Lease lease_;
  CallMetrics call_;
  const std::vector<v1::TraceTrack> tracks_;
  size_t written_ = 0;
  grpc::StatusCode code_ = grpc::StatusCode::OK;
};

}  // namespace latentd::api
