#include "channel/ack_ledger.h"

#include <string>
#include <utility>

#include "channel/limits.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

static_assert(kRanksMax <= 64, "a set of consumer ranks is one word");

constexpr uint64_t bitOf(uint32_t rank) { return uint64_t{1} << rank; }

}  // namespace

AckLedger::AckLedger(uint32_t consumer_ranks)
    : everyone_(consumer_ranks == 64 ? ~uint64_t{0} : bitOf(consumer_ranks) - 1) {}

void AckLedger::add(Entry entry) {
  LATENTD_CHECK(!entry.slots.empty(), "an artifact in flight holds a slot or a ticket [C4]");
  entry.copied_by.assign(entry.slots.size(), 0);
  const SequenceNumber sequence = entry.sequence;
  const bool added = entries_.emplace(sequence, std::move(entry)).second;
  LATENTD_CHECK(added, "a number is published once [C5]");
}

StatusOr<AckLedger::Outcome> AckLedger::onDoorbell(SequenceNumber sequence, Rank consumer,
                                                   const ControlBlock& control) {
  Outcome outcome;
  const auto found = entries_.find(sequence);
  if (found == entries_.end() || (found->second.acknowledged & bitOf(consumer.value)) != 0) {
    outcome.stale = true;
    return outcome;
  }
  Entry& entry = found->second;
  for (size_t i = 0; i < entry.slots.size(); ++i) {
    const SlotRef& ref = entry.slots[i];
    const int64_t word = control.acknowledgement(ref, consumer);
    if (word != ref.generation.value && word != -ref.generation.value) {
      return makeStatus(absl::StatusCode::kInternal,
                        "consumer rank " + std::to_string(consumer.value) + " acknowledged " + std::to_string(word) +
                            " where generation " + std::to_string(ref.generation.value) + " is published (row " +
                            std::to_string(ref.row.value) + ", slot " + std::to_string(ref.slot.value) + ")");
    }
    if (word > 0) entry.copied_by[i] |= bitOf(consumer.value);
    ++(word > 0 ? outcome.copied : outcome.discarded);
  }
  entry.acknowledged |= bitOf(consumer.value);
  if (entry.acknowledged == everyone_) {
    outcome.done = std::move(entry);
    entries_.erase(found);
  }
  return outcome;
}

uint64_t AckLedger::waitingFor(RowIndex row) const {
  uint64_t ranks = 0;
  for (const auto& [sequence, entry] : entries_) {
    for (const SlotRef& ref : entry.slots) {
      if (ref.row == row) ranks |= everyone_ & ~entry.acknowledged;
    }
  }
  return ranks;
}

}  // namespace latentd::channel
