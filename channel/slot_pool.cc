#include "channel/slot_pool.h"

#include <algorithm>

namespace latentd::channel {

std::optional<SlotIndex> SlotPool::tryAcquire() {
  for (uint32_t i = 0; i < size(); ++i) {
    const uint32_t slot = (next_ + i) % size();
    if (!slots_[slot].state.is(SlotState::kFree)) continue;
    slots_[slot].state.move(SlotState::kFilling);
    next_ = (slot + 1) % size();
    return SlotIndex(slot);
  }
  return std::nullopt;
}

void SlotPool::publish(SlotIndex slot) {
  Slot& published = slots_[slot.value];
  published.state.move(SlotState::kPublished);
  ++published.generation.value;
}

void SlotPool::abandon(SlotIndex slot) { slots_[slot.value].state.move(SlotState::kFree); }

void SlotPool::release(SlotIndex slot, uint64_t copied_by) {
  slots_[slot.value].state.move(SlotState::kFree);
  slots_[slot.value].copied_by = copied_by;
}

uint32_t SlotPool::published() const {
  return static_cast<uint32_t>(std::count_if(slots_.begin(), slots_.end(),
                                             [](const Slot& slot) { return slot.state.is(SlotState::kPublished); }));
}

}  // namespace latentd::channel
