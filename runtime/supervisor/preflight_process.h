#pragma once

#include <chrono>
#include <string>

#include "proto/worker.pb.h"
#include "runtime/base/child_spawner.h"
#include "runtime/base/status.h"

namespace latentd::supervisor {

// Runs `worker_binary --preflight` and waits for its answer, which has a group for each of the request's.
// DEADLINE_EXCEEDED, UNAVAILABLE or INTERNAL name the program, how it ended and what it printed last; CANCELLED as soon
// as interrupt_fd is readable, unless that is -1.
StatusOr<internal::v1::PreflightResult> runPreflight(ChildSpawner& spawner, const std::string& worker_binary,
                                                     const internal::v1::PreflightRequest& request,
                                                     std::chrono::milliseconds timeout, int interrupt_fd);

}  // namespace latentd::supervisor
