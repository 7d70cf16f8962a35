#include "runtime/base/status_field.h"

namespace latentd {
namespace {

constexpr const char* kFieldPayload = "latentd/field";

}  // namespace

Status atField(Status status, std::string_view field) {
  if (!status.ok() && !status.GetPayload(kFieldPayload)) status.SetPayload(kFieldPayload, absl::Cord(toAbsl(field)));
  return status;
}

std::string fieldOf(const Status& status) {
  const auto payload = status.GetPayload(kFieldPayload);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace latentd
