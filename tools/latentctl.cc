#include <grpc/support/log.h>

#include <cstdlib>

#include "tools/ctl/command_line.h"

int main(int argc, char** argv) {
  // gRPC's own messages are causes of statuses that the commands explain.
  gpr_set_log_function([](gpr_log_func_args*) {});
  const char* endpoint = std::getenv("LATENTD_ENDPOINT");
  return latentd::ctl::runCommandLine(argc, argv,
                                      endpoint != nullptr && *endpoint != '\0' ? endpoint : "127.0.0.1:7411");
}
