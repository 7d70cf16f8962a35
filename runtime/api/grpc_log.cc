#include "runtime/api/grpc_log.h"

#include <grpc/support/log.h>

#include "runtime/base/log.h"

namespace latentd::api {

void routeGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* message) {
    const auto level = message->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::debug : spdlog::level::trace;
    getLogger("grpc")->log(level, "{}", message->message);
  });
}

}  // namespace latentd::api
