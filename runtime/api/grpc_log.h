#pragma once

namespace latentd::api {

// Sends gRPC's own messages to the logger "grpc", one level lower: its errors are causes that calls also return.
// Called once by a main after initLogging(), before any other use of gRPC.
void routeGrpcLog();

}  // namespace latentd::api
