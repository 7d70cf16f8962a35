#include "runtime/base/status.h"

#include <cerrno>

#include "runtime/base/status_field.h"
#include "tests/support/catch.h"

namespace latentd {
namespace {

StatusOr<int> half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

Status quarter(int value, int* out) {
  LATENTD_ASSIGN_OR_RETURN(const int once, half(value));
  LATENTD_ASSIGN_OR_RETURN(*out, half(once));
  return absl::OkStatus();
}

TEST_CASE("status: a failed step returns its status", "[base]") {
  int out = 0;
  CHECK(quarter(8, &out).ok());
  CHECK(out == 2);
  CHECK(quarter(6, &out).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("status: annotate keeps the code and puts the context first", "[base]") {
  const Status annotated = annotate(absl::NotFoundError("no such tensor"), "file.safetensors");
  CHECK(annotated.code() == absl::StatusCode::kNotFound);
  CHECK(messageOf(annotated) == "file.safetensors: no such tensor");
  CHECK(annotate(absl::OkStatus(), "ignored").ok());
}

TEST_CASE("status: a field stays with its status, the innermost one", "[base]") {
  const Status status = atField(annotate(atField(absl::NotFoundError("x"), "options.x"), "group"), "model");
  CHECK(fieldOf(status) == "options.x");
  CHECK(messageOf(status) == "group: x");
  CHECK(fieldOf(absl::NotFoundError("x")) == "");
  CHECK(fieldOf(atField(absl::OkStatus(), "x")) == "");
}

TEST_CASE("status: errno maps to the canonical code", "[base]") {
  CHECK(errnoStatus(ENOSPC, "write").code() == absl::StatusCode::kResourceExhausted);
  CHECK(errnoStatus(ENOENT, "open").code() == absl::StatusCode::kNotFound);
  CHECK(errnoStatus(EPIPE, "send").code() == absl::StatusCode::kUnavailable);
  CHECK(messageOf(errnoStatus(ENOENT, "open x")) == "open x: No such file or directory");
}

}  // namespace
}  // namespace latentd
