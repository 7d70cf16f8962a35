#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "channel/slot_state.h"
#include "runtime/base/strong_id.h"

namespace latentd::channel {

// Which of a profile's slots are taken, and their generations; not their storage. Round robin, so that sequential
// traffic alternates between buffers; a slot that is held for long is passed over.
// Owner: the producer. Thread: its lock. States: SlotState of each slot. Failure: none; misuse aborts.
class SlotPool {
 public:
  explicit SlotPool(uint32_t slots) : slots_(slots) {}

  // Free -> filling; empty if no slot is free.
  std::optional<SlotIndex> tryAcquire();
  // The generation that publish() will give the slot.
  Generation nextGeneration(SlotIndex slot) const { return Generation(slots_[slot.value].generation.value + 1); }
  // Filling -> published, with the next generation.
  void publish(SlotIndex slot);
  // Filling -> free; the generation is not used.
  void abandon(SlotIndex slot);
  // Published -> free. `copied_by`: a bit for each consumer rank that copied, hence recorded a completion.
  void release(SlotIndex slot, uint64_t copied_by);

  // Ranks that copied the previous generation: whoever fills the slot waits for their completion first.
  uint64_t copiedBy(SlotIndex slot) const { return slots_[slot.value].copied_by; }
  uint32_t published() const;
  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }

 private:
  struct Slot {
    StateMachine<kSlotTransitions, SlotState> state{SlotState::kFree};
    Generation generation{0};
    uint64_t copied_by = 0;
  };
  std::vector<Slot> slots_;
  uint32_t next_ = 0;  // where the search for a free slot starts
};

}  // namespace latentd::channel
