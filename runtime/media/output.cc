#include "runtime/media/output.h"

namespace latentd::media {
namespace {

constexpr const char* kFramesMissingPayload = "latentd/frames-missing";

}  // namespace

Status markFramesMissing(Status status) {
  status.SetPayload(kFramesMissingPayload, absl::Cord());
  return status;
}

bool isFramesMissing(const Status& status) { return status.GetPayload(kFramesMissingPayload).has_value(); }

}  // namespace latentd::media
