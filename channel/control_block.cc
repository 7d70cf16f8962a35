#include "channel/control_block.h"

#include <atomic>
#include <cstring>

#include "channel/limits.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

constexpr size_t kLine = 64;
constexpr uint64_t kMagic = 0x6c6174656e746463;  // "latentdc"

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t channel_id;
  uint64_t producer_epoch;
  uint64_t consumer_epoch;
  uint32_t producer_rank;
  uint32_t consumer_ranks;
  uint32_t profiles_max;
  uint32_t slots;
};
static_assert(sizeof(Header) <= kLine);

constexpr size_t kProgressOffset = kLine;
constexpr size_t kPublishedOffset = 2 * kLine;
static_assert(std::atomic_ref<int64_t>::is_always_lock_free, "another process may die while it writes");

Header headerOf(const ChannelSpec& spec, Rank producer) {
  return {kMagic,
          kProtocolVersion,
          spec.channel_id,
          spec.producer_epoch.value,
          spec.consumer_epoch.value,
          producer.value,
          spec.consumer_ranks,
          spec.profiles_max,
          spec.slots};
}

}  // namespace

ControlBlock::ControlBlock(std::byte* base, const ChannelSpec& spec)
    : base_(base),
      profiles_max_(spec.profiles_max),
      slots_(spec.slots),
      consumer_ranks_(spec.consumer_ranks),
      words_(size_t{spec.profiles_max} * spec.slots + kTickets),
      words_bytes_(roundUp(words_ * sizeof(int64_t), kLine)),
      consumer_bytes_(kLine + words_bytes_) {}

uint64_t ControlBlock::bytesFor(const ChannelSpec& spec) {
  const ControlBlock sizes(nullptr, spec);
  return kPublishedOffset + 2 * sizes.words_bytes_ + sizes.consumer_bytes_ * spec.consumer_ranks;
}

ControlBlock ControlBlock::format(std::span<std::byte> memory, const ChannelSpec& spec, Rank producer) {
  LATENTD_CHECK(memory.size() >= bytesFor(spec), "memory for a control block is too small");
  LATENTD_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kLine == 0, "a control block starts at a cache line");
  const Header header = headerOf(spec, producer);
  std::memcpy(memory.data(), &header, sizeof(header));
  return ControlBlock(memory.data(), spec);
}

StatusOr<ControlBlock> ControlBlock::bind(std::span<std::byte> memory, const ChannelSpec& spec, Rank producer) {
  const Header wanted = headerOf(spec, producer);
  if (memory.size() < bytesFor(spec) || std::memcmp(memory.data(), &wanted, sizeof(wanted)) != 0) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "the control block of producer rank " +
                                                              std::to_string(producer.value) + " of " + spec.edge +
                                                              " is not one of this channel and epoch");
  }
  return ControlBlock(memory.data(), spec);
}

size_t ControlBlock::wordIndex(RowIndex row, SlotIndex slot) const {
  LATENTD_CHECK(row.value <= profiles_max_ && slot.value < (row.value == profiles_max_ ? kTickets : slots_),
                "a word outside of the control block");
  return size_t{row.value} * slots_ + slot.value;
}

int64_t* ControlBlock::publishedWord(RowIndex row, SlotIndex slot) const {
  return reinterpret_cast<int64_t*>(base_ + kPublishedOffset) + wordIndex(row, slot);
}

uint64_t* ControlBlock::fillsWord(RowIndex row, SlotIndex slot) const {
  return reinterpret_cast<uint64_t*>(base_ + kPublishedOffset + words_bytes_) + wordIndex(row, slot);
}

uint64_t* ControlBlock::progressWord(Rank consumer) const {
  LATENTD_CHECK(consumer.value < consumer_ranks_, "a consumer rank outside of the control block");
  return reinterpret_cast<uint64_t*>(base_ + kPublishedOffset + 2 * words_bytes_ + consumer_bytes_ * consumer.value);
}

int64_t* ControlBlock::ackWord(RowIndex row, SlotIndex slot, Rank consumer) const {
  std::byte* part = reinterpret_cast<std::byte*>(progressWord(consumer));
  return reinterpret_cast<int64_t*>(part + kLine) + wordIndex(row, slot);
}

void ControlBlock::publish(const SlotRef& ref) {
  std::atomic_ref<int64_t>(*publishedWord(ref.row, ref.slot)).store(ref.generation.value, std::memory_order_release);
}

Generation ControlBlock::published(RowIndex row, SlotIndex slot) const {
  return Generation(std::atomic_ref<int64_t>(*publishedWord(row, slot)).load(std::memory_order_acquire));
}

void ControlBlock::noteFill(RowIndex row, SlotIndex slot) {
  std::atomic_ref<uint64_t>(*fillsWord(row, slot)).fetch_add(1, std::memory_order_release);
}

uint64_t ControlBlock::fills(RowIndex row, SlotIndex slot) const {
  return std::atomic_ref<uint64_t>(*fillsWord(row, slot)).load(std::memory_order_acquire);
}

void ControlBlock::acknowledge(const SlotRef& ref, Rank consumer, bool copied) {
  const int64_t word = copied ? ref.generation.value : -ref.generation.value;
  std::atomic_ref<int64_t>(*ackWord(ref.row, ref.slot, consumer)).store(word, std::memory_order_release);
}

int64_t ControlBlock::acknowledgement(const SlotRef& ref, Rank consumer) const {
  return std::atomic_ref<int64_t>(*ackWord(ref.row, ref.slot, consumer)).load(std::memory_order_acquire);
}

void ControlBlock::noteProducerProgress() {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base_ + kProgressOffset))
      .fetch_add(1, std::memory_order_relaxed);
}

uint64_t ControlBlock::producerProgress() const {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base_ + kProgressOffset))
      .load(std::memory_order_relaxed);
}

void ControlBlock::noteConsumerProgress(Rank consumer) {
  std::atomic_ref<uint64_t>(*progressWord(consumer)).fetch_add(1, std::memory_order_relaxed);
}

uint64_t ControlBlock::consumerProgress(Rank consumer) const {
  return std::atomic_ref<uint64_t>(*progressWord(consumer)).load(std::memory_order_relaxed);
}

}  // namespace latentd::channel
