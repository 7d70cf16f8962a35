#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "channel/ack_ledger.h"
#include "channel/backend.h"
#include "channel/record.h"
#include "channel/slot_pool.h"

namespace latentd::channel {

// The storage of a producer rank: pools by profile, and one-shot buffers by ticket.
// Owner: the producer. Thread: its lock, save createPool() and createOneShot(), which only talk to the backend.
// States: slots have theirs (channel/slot_state.h). Failure: RESOURCE_EXHAUSTED from the backend changes nothing here.
class Staging {
 public:
  // What a pool is keyed by, and its pool.
  struct Profile {
    uint32_t leaf = 0;
    TensorDesc desc;
    PoolLayout layout;
    SlotPool slots;
    std::unique_ptr<ExportedPool> pool;
  };

  Staging(const ChannelSpec& spec, std::shared_ptr<Backend> backend);

  // The pool of a leaf, if it has one.
  std::optional<RowIndex> findProfile(uint32_t leaf, const TensorDesc& desc) const;
  bool canAddProfile() const { return profiles_.size() < spec_.profiles_max; }
  // Outside the lock: allocating takes time.
  StatusOr<std::unique_ptr<ExportedPool>> createPool(const TensorDesc& desc) const;
  RowIndex addProfile(uint32_t leaf, const TensorDesc& desc, std::unique_ptr<ExportedPool> pool);
  Profile& profile(RowIndex row) { return *profiles_[row.value]; }
  uint32_t profileCount() const { return static_cast<uint32_t>(profiles_.size()); }
  uint64_t poolBytes() const;

  // Bytes that wait for an acknowledgement, or to be freed, kept at or below the bound.
  bool canReserve(uint64_t bytes) const { return unpooled_bytes_ + bytes <= spec_.unpooled_bytes_max; }
  void reserve(uint64_t bytes) { unpooled_bytes_ += bytes; }
  void unreserve(uint64_t bytes) { unpooled_bytes_ -= bytes; }
  uint64_t unpooledBytes() const { return unpooled_bytes_; }
  StatusOr<std::unique_ptr<ExportedPool>> createOneShot(Device device, uint64_t bytes) const;
  // Keeps a buffer until its ticket is released, and the bytes that are reserved for it.
  void keepOneShot(SlotIndex ticket, std::unique_ptr<ExportedPool> buffer, uint64_t reserved);

  // Slots of a profile, or the tickets.
  SlotPool& row(RowIndex row) { return row == ticketRow() ? tickets_ : profile(row).slots; }
  RowIndex ticketRow() const { return RowIndex(spec_.profiles_max); }
  // One-shot buffers, to be destroyed outside the lock, and what to unreserve then.
  struct Freed {
    std::vector<std::unique_ptr<ExportedPool>> buffers;
    uint64_t bytes = 0;
  };
  // Every word of an artifact was acknowledged: its slots are free again.
  Freed release(const AckLedger::Entry& entry);
  uint32_t slotsInUse() const;

  // False while submitted fills still wait for that rank's events: ask again.
  StatusOr<bool> tryDropAttachments(Rank consumer);

 private:
  struct OneShot {
    std::unique_ptr<ExportedPool> buffer;
    uint64_t reserved = 0;
  };

  const ChannelSpec spec_;
  const std::shared_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Profile>> profiles_;  // pointers: fill() uses one while the table grows
  SlotPool tickets_;
  std::vector<OneShot> one_shots_;  // by ticket
  uint64_t unpooled_bytes_ = 0;
};

}  // namespace latentd::channel
