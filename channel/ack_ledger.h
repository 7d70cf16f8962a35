#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "channel/control_block.h"
#include "runtime/base/clock.h"

namespace latentd::channel {

// Artifacts that were published and that some consumer rank has not acknowledged.
// Owner: the producer. Thread: its lock. States: none. Failure: a Status for words that a peer cannot have written by
// the protocol.
class AckLedger {
 public:
  struct Entry {
    SequenceNumber sequence;
    std::vector<SlotRef> slots;
    uint64_t bytes = 0;
    bool pooled = true;
    Clock::TimePoint start;
    Clock::Duration slot_wait{};
    // Bit c: consumer rank c acknowledged; of each slot, that it copied.
    uint64_t acknowledged = 0;
    std::vector<uint64_t> copied_by;  // one for each of `slots`
  };
  struct Outcome {
    bool stale = false;   // no such artifact, or acknowledged before: drop and count
    uint32_t copied = 0;  // slots, by sign
    uint32_t discarded = 0;
    std::optional<Entry> done;  // acknowledged by every consumer rank
  };

  explicit AckLedger(uint32_t consumer_ranks);

  void add(Entry entry);
  // The consumer rank says that its words for the artifact are written: reads them. INTERNAL if one of them is not
  // +-generation.
  StatusOr<Outcome> onDoorbell(SequenceNumber sequence, Rank consumer, const ControlBlock& control);
  // Bit c: consumer rank c holds up the artifact in this slot. 0 if the slot is in no artifact.
  uint64_t waitingFor(RowIndex row) const;
  size_t size() const { return entries_.size(); }

 private:
  const uint64_t everyone_;
  std::map<SequenceNumber, Entry> entries_;  // bounded by the slots: each entry holds at least one
};

}  // namespace latentd::channel
