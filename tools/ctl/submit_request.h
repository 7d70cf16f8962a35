#pragma once

#include <grpcpp/support/status.h>

#include "proto/api.pb.h"
#include "runtime/base/status.h"
#include "tools/ctl/submit.h"

namespace latentd::ctl {

// The request of the flags. INVALID_ARGUMENT names the flag; NOT_FOUND and the like an input file.
StatusOr<v1::SubmitRequest> makeSubmitRequest(const SubmitOptions& options);

// A refusal that begins with a field of the API begins with its flag instead: "--guidance = 200: must be ...".
grpc::Status withOptionNames(const grpc::Status& status);

}  // namespace latentd::ctl
