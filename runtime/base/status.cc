#include "runtime/base/status.h"

#include <cerrno>
#include <cstring>

namespace latentd {
namespace {

absl::StatusCode codeOf(int error_number) {
  switch (error_number) {
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
      return absl::StatusCode::kResourceExhausted;
    case ENOENT:
    case ESRCH:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
      return absl::StatusCode::kUnavailable;
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case EINVAL:
    case ENAMETOOLONG:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

Status annotate(const Status& status, std::string_view context) {
  if (status.ok()) return status;
  std::string message(context);
  message.append(": ").append(messageOf(status));
  Status annotated = makeStatus(status.code(), message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

Status errnoStatus(int error_number, std::string_view what) {
  char buffer[128];
  std::string message(what);
  message.append(": ").append(strerror_r(error_number, buffer, sizeof(buffer)));
  return makeStatus(codeOf(error_number), message);
}

}  // namespace latentd
