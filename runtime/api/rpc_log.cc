#include "runtime/api/rpc_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>

#include "runtime/base/log.h"

namespace latentd::api {
namespace {

spdlog::level::level_enum levelOf(bool is_error) { return is_error ? spdlog::level::debug : spdlog::level::trace; }

void logGrpc(gpr_log_func_args* message) {
  getLogger("grpc")->log(levelOf(message->severity == GPR_LOG_SEVERITY_ERROR), "{}", message->message);
}

void logProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  getLogger("protobuf")->log(levelOf(level >= google::protobuf::LOGLEVEL_ERROR), "{}", message);
}

}  // namespace

void routeRpcLogs() {
  gpr_set_log_function(logGrpc);
  google::protobuf::SetLogHandler(logProtobuf);
}

}  // namespace latentd::api
