#pragma once

#include <grpcpp/support/status.h>

#include "proto/api.pb.h"
#include "runtime/base/status.h"

namespace latentd::api {

// The codes are the same. A status about one field says which in its details: proto/rpc_status.proto.
grpc::Status toGrpc(const Status& status);

inline bool isTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

}  // namespace latentd::api
