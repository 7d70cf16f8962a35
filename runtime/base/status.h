#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

// Errors are absl::Status: the codes are gRPC's, so they cross the wire unchanged.
// Caller or configuration -> Status; likely environment (disk, peer, memory) -> Status and a counter; impossible
// after start-up -> LATENTD_CHECK (runtime/base/check.h).
namespace latentd {

using absl::Status;
using absl::StatusOr;

// Debian's abseil has a string_view type of its own; this is the one place that converts.
inline absl::string_view toAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view fromAbsl(absl::string_view text) { return {text.data(), text.size()}; }

inline Status makeStatus(absl::StatusCode code, std::string_view message) { return Status(code, toAbsl(message)); }

// The message of a status, without its code.
inline std::string messageOf(const Status& status) { return std::string(fromAbsl(status.message())); }

// "context: message", same code and payloads. An OK status is returned as it is.
Status annotate(const Status& status, std::string_view context);

// Status of a failed system call: `what` says what was tried, on which object. ENOMEM, ENOSPC, EMFILE and the like
// become RESOURCE_EXHAUSTED, ENOENT NOT_FOUND, EACCES PERMISSION_DENIED, EPIPE and ECONNRESET UNAVAILABLE, ETIMEDOUT
// DEADLINE_EXCEEDED, EINVAL INVALID_ARGUMENT, anything else INTERNAL.
Status errnoStatus(int error_number, std::string_view what);

}  // namespace latentd

#define LATENTD_CONCAT_INNER(a, b) a##b
#define LATENTD_CONCAT(a, b) LATENTD_CONCAT_INNER(a, b)

#define LATENTD_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                             \
    if (::absl::Status latentd_status = (expression); !latentd_status.ok()) return latentd_status; \
  } while (false)

#define LATENTD_ASSIGN_OR_RETURN(declaration, expression) \
  LATENTD_ASSIGN_OR_RETURN_IMPL(LATENTD_CONCAT(latentd_status_or_, __LINE__), declaration, expression)
#define LATENTD_ASSIGN_OR_RETURN_IMPL(holder, declaration, expression) \
  auto holder = (expression);                                          \
  if (!holder.ok()) return std::move(holder).status();                 \
  declaration = std::move(holder).value()
