#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "proto/api.pb.h"
#include "runtime/base/status.h"

// What proto/api.proto promises of a request whatever model is loaded. What the model accepts is the supervisor's to
// check. Failure: INVALID_ARGUMENT naming the field, the value and a valid one.
namespace latentd::api {

inline constexpr uint32_t kPageSizeDefault = 50;
inline constexpr uint32_t kPageSizeMax = 1000;

Status checkSubmit(const v1::SubmitRequest& request);
Status checkId(const std::string& id);
Status checkList(const v1::ListJobsRequest& request);
// The time a drain may take, `absent` when the request names none.
StatusOr<std::chrono::milliseconds> drainDeadline(const v1::DrainRequest& request, std::chrono::milliseconds absent);

}  // namespace latentd::api
