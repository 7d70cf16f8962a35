#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "channel/channel.h"
#include "runtime/base/status.h"

namespace latentd::channel {

// Row of the control block that a word belongs to: a profile, or the tickets after the last one.
using RowIndex = StrongId<struct RowIndexTag, uint32_t>;

// One slot's place in the control block, and the publication that is meant.
struct SlotRef {
  RowIndex row;
  SlotIndex slot;
  Generation generation;

  bool operator==(const SlotRef&) const = default;
};

// The lock-free words of one producer rank, in memory that it shares with every consumer rank:
//
//   header                        written by the producer before anybody else sees it, then constant
//   producer progress             written by the producer
//   published[row][slot]          generation in the slot; written by the producer
//   fills[row][slot]              how often a copy into the slot was submitted; written by the producer
//   consumer c: progress          written by consumer c
//               acks[row][slot]   +g: c copied generation g; -g: c read nothing of it; written by consumer c
//
// Memory order. A producer fills the slot, then stores published (release), then sends the record. A consumer that got
// the record loads published (acquire) and requires the record's generation: the fill happens before its reads. It
// reads the slot, then stores the ack (release). The producer loads the ack (acquire) and requires +-generation before
// it fills the slot again: the reads happen before the next fill. No word has two writers, so no store is lost. Words
// of different writers share no cache line. Fills are counted (release) before the publication, which may fail yet: the
// same count (acquire) before a read and after the record of what was read is one fill. Progress words order nothing
// and are relaxed.
//
// A view; a value type. Owner: the memory is the backend's. Thread: any.
// Failure: bind() refuses a header that does not match; the words themselves are validated by their readers.
class ControlBlock {
 public:
  static uint64_t bytesFor(const ChannelSpec& spec);
  // Formats zeroed memory of at least bytesFor(spec) bytes, 64-byte aligned.
  static ControlBlock format(std::span<std::byte> memory, const ChannelSpec& spec, Rank producer);
  // INVALID_ARGUMENT unless the memory was formatted for the same channel, epochs and rank.
  static StatusOr<ControlBlock> bind(std::span<std::byte> memory, const ChannelSpec& spec, Rank producer);

  void publish(const SlotRef& ref);
  Generation published(RowIndex row, SlotIndex slot) const;
  void noteFill(RowIndex row, SlotIndex slot);
  uint64_t fills(RowIndex row, SlotIndex slot) const;
  void acknowledge(const SlotRef& ref, Rank consumer, bool copied);
  int64_t acknowledgement(const SlotRef& ref, Rank consumer) const;

  void noteProducerProgress();
  uint64_t producerProgress() const;
  void noteConsumerProgress(Rank consumer);
  uint64_t consumerProgress(Rank consumer) const;

  // The row of tickets.
  RowIndex ticketRow() const { return RowIndex(profiles_max_); }

 private:
  ControlBlock(std::byte* base, const ChannelSpec& spec);
  int64_t* publishedWord(RowIndex row, SlotIndex slot) const;
  uint64_t* fillsWord(RowIndex row, SlotIndex slot) const;
  int64_t* ackWord(RowIndex row, SlotIndex slot, Rank consumer) const;
  uint64_t* progressWord(Rank consumer) const;
  size_t wordIndex(RowIndex row, SlotIndex slot) const;

  std::byte* base_;
  uint32_t profiles_max_;
  uint32_t slots_;
  uint32_t consumer_ranks_;
  size_t words_;           // published words, fills, and acks of each consumer rank
  size_t words_bytes_;     // of each of these
  size_t consumer_bytes_;  // one consumer rank's part
};

}  // namespace latentd::channel
