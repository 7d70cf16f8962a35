#include "channel/pool_layout.h"

#include <string>

namespace latentd::channel {

Status checkSlotsFit(const PoolLayout& layout) {
  const bool fits = layout.slots > 0 && layout.slot_stride > 0 && layout.slot_stride <= layout.bytes / layout.slots;
  if (fits) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    std::to_string(layout.slots) + " slots of " + std::to_string(layout.slot_stride) +
                        " bytes do not fit a pool of " + std::to_string(layout.bytes));
}

}  // namespace latentd::channel
