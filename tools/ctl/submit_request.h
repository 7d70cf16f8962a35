#pragma once

#include "proto/api.pb.h"
#include "runtime/base/status.h"
#include "tools/ctl/submit.h"

namespace latentd::ctl {

// The request of the flags. INVALID_ARGUMENT names the flag; NOT_FOUND and the like an input file.
StatusOr<v1::SubmitRequest> makeSubmitRequest(const SubmitOptions& options);

}  // namespace latentd::ctl
