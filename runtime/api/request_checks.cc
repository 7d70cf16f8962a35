#include "runtime/api/request_checks.h"

#include <string_view>

namespace latentd::api {
namespace {

constexpr int32_t kPriorityMax = 100;
constexpr size_t kIdBytesMax = 128;  // ours have 16; a request id may be a UUID with a prefix
// A month: longer than any job, and far from what a sum with a point in time could overflow.
constexpr int64_t kSecondsMax = 30LL * 24 * 3600;
constexpr int32_t kNanosMax = 999'999'999;

Status invalid(std::string_view field, const std::string& value, std::string_view valid) {
  std::string message(field);
  message.append(": ").append(value).append(" is not valid; give ").append(valid);
  return makeStatus(absl::StatusCode::kInvalidArgument, message);
}

std::string secondsText(const google::protobuf::Duration& duration) {
  return std::to_string(static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9) + " s";
}

Status checkPositive(std::string_view field, const google::protobuf::Duration& duration) {
  const bool in_range = duration.seconds() >= 0 && duration.seconds() <= kSecondsMax && duration.nanos() >= 0 &&
                        duration.nanos() <= kNanosMax && (duration.seconds() > 0 || duration.nanos() > 0);
  if (in_range) return absl::OkStatus();
  return invalid(field, secondsText(duration), "more than 0 and at most 2592000 s (30 days), such as 600 s");
}

Status checkTimestamp(std::string_view field, const google::protobuf::Timestamp& time) {
  if (time.nanos() >= 0 && time.nanos() <= kNanosMax) return absl::OkStatus();
  return invalid(field, std::to_string(time.nanos()) + " nanoseconds", "0 to 999999999 nanoseconds");
}

Status checkFormat(const v1::JobParameters& parameters) {
  if (!v1::OutputFormat_IsValid(parameters.format())) {
    return invalid("parameters.format", std::to_string(parameters.format()),
                   "one of MP4, GIF, Y4M, PNG, NPY, RGB24 (1 to 6)");
  }
  if (parameters.float_pixels() && parameters.format() != v1::OUTPUT_FORMAT_NPY) {
    return invalid("parameters.float_pixels", "true with format " + v1::OutputFormat_Name(parameters.format()),
                   "it with OUTPUT_FORMAT_NPY only");
  }
  return absl::OkStatus();
}

}  // namespace

Status checkSubmit(const v1::SubmitRequest& request) {
  if (!request.has_parameters()) return invalid("parameters", "an absent message", "at least parameters.prompt");
  LATENTD_RETURN_IF_ERROR(checkFormat(request.parameters()));
  if (request.priority() < -kPriorityMax || request.priority() > kPriorityMax) {
    return invalid("priority", std::to_string(request.priority()), "-100 to 100, higher first");
  }
  if (request.has_deadline()) LATENTD_RETURN_IF_ERROR(checkPositive("deadline", request.deadline()));
  if (request.has_stall_timeout()) LATENTD_RETURN_IF_ERROR(checkPositive("stall_timeout", request.stall_timeout()));
  if (request.request_id().size() > kIdBytesMax) {
    return invalid("request_id", "a text of " + std::to_string(request.request_id().size()) + " bytes",
                   "at most 128 bytes, such as a UUID");
  }
  return absl::OkStatus();
}

Status checkId(const std::string& id) {
  if (id.empty()) return invalid("id", "an empty text", "the id that Submit returned (List shows all)");
  if (id.size() > kIdBytesMax) {
    return invalid("id", "a text of " + std::to_string(id.size()) + " bytes", "the id that Submit returned");
  }
  return absl::OkStatus();
}

Status checkList(const v1::ListJobsRequest& request) {
  if (request.page_size() > kPageSizeMax) {
    return invalid("page_size", std::to_string(request.page_size()), "1 to 1000, or 0 for 50");
  }
  for (const int state : request.states()) {
    if (state == v1::JOB_STATE_UNSPECIFIED || !v1::JobState_IsValid(state)) {
      return invalid("states", std::to_string(state),
                     "some of QUEUED, RUNNING, CANCELLING, SUCCEEDED, FAILED, CANCELLED (1 to 6), or none for all");
    }
  }
  LATENTD_RETURN_IF_ERROR(checkTimestamp("created_after", request.created_after()));
  return checkTimestamp("created_before", request.created_before());
}

StatusOr<std::chrono::milliseconds> drainDeadline(const v1::DrainRequest& request, std::chrono::milliseconds absent) {
  if (!request.has_deadline()) return absent;
  LATENTD_RETURN_IF_ERROR(checkPositive("deadline", request.deadline()));
  return std::chrono::seconds(request.deadline().seconds()) +
         std::chrono::milliseconds(request.deadline().nanos() / 1'000'000);
}

}  // namespace latentd::api
