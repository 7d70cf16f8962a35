#include "channel/slot_state.h"

namespace latentd::channel {

std::string_view toString(SlotState state) {
  switch (state) {
    case SlotState::kFree:
      return "free";
    case SlotState::kFilling:
      return "filling";
    case SlotState::kPublished:
      return "published";
  }
  return "invalid";
}

std::string_view toString(ArtifactState state) {
  switch (state) {
    case ArtifactState::kAwaited:
      return "awaited";
    case ArtifactState::kArrived:
      return "arrived";
    case ArtifactState::kCopying:
      return "copying";
    case ArtifactState::kBorrowed:
      return "borrowed";
    case ArtifactState::kDiscarding:
      return "discarding";
    case ArtifactState::kEnded:
      return "ended";
  }
  return "invalid";
}

}  // namespace latentd::channel
