#pragma once

namespace latentd::api {

// Sends the messages of gRPC and protobuf to the loggers "grpc" and "protobuf" instead of standard error, their errors
// at level debug: each is the cause of a status that a call also returns.
// Called once by a main after initLogging(), before any other use of gRPC.
void routeRpcLogs();

}  // namespace latentd::api
