#pragma once

#include "proto/worker.pb.h"
#include "runtime/base/status.h"
#include "stages/stage_registry.h"

// What a worker program tells before any of it serves: for a topology's check and start, and for people.
namespace latentd::worker {

// Checks each group as far as configurations and the headers of weight files tell, and surveys the devices. Reads no
// weight, needs no device. A group's problem is in its findings.
internal::v1::PreflightResult preflight(const stages::StageRegistry& registry,
                                        const internal::v1::PreflightRequest& request);

// The same through descriptors of files: the request is read from one, the result written to the other.
Status answerPreflight(const stages::StageRegistry& registry, int request_fd, int result_fd);

// Every stage with its methods and options, as JSON.
StatusOr<std::string> describeStages(const stages::StageRegistry& registry);

}  // namespace latentd::worker
