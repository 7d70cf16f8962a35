#include <grpc/support/log.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/base/standard_output.h"
#include "tools/ctl/command_line.h"
#include "tools/ctl/exit_code.h"

int main(int argc, char** argv) {
  // gRPC's own messages are causes of statuses that the commands explain.
  gpr_set_log_function([](gpr_log_func_args*) {});
  const char* endpoint = std::getenv("LATENTD_ENDPOINT");
  const int code =
      latentd::ctl::runCommandLine(argc, argv, endpoint != nullptr && *endpoint != '\0' ? endpoint : "127.0.0.1:7411");
  const latentd::Status written = latentd::flushOutput();
  if (written.ok()) return code;
  std::fprintf(stderr, "latentctl: %s\n", latentd::messageOf(written).c_str());
  return code != 0 ? code : static_cast<int>(latentd::ctl::ExitCode::kLocalFile);
}
