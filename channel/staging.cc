#include "channel/staging.h"

#include <utility>

#include "channel/limits.h"
#include "runtime/base/check.h"

namespace latentd::channel {

Staging::Staging(const ChannelSpec& spec, std::shared_ptr<Backend> backend)
    : spec_(spec), backend_(std::move(backend)), tickets_(kTickets), one_shots_(kTickets) {}

std::optional<RowIndex> Staging::findProfile(uint32_t leaf, const TensorDesc& desc) const {
  for (uint32_t i = 0; i < profiles_.size(); ++i) {
    if (profiles_[i]->leaf == leaf && profiles_[i]->desc == desc) return RowIndex(i);
  }
  return std::nullopt;
}

StatusOr<std::unique_ptr<ExportedPool>> Staging::createPool(const TensorDesc& desc) const {
  return backend_->createPool("latentd-pool", poolLayout(desc, spec_));
}

RowIndex Staging::addProfile(uint32_t leaf, const TensorDesc& desc, std::unique_ptr<ExportedPool> pool) {
  LATENTD_CHECK(canAddProfile(), "more pools than profiles_max [C9]");
  profiles_.push_back(
      std::make_unique<Profile>(Profile{leaf, desc, poolLayout(desc, spec_), SlotPool(spec_.slots), std::move(pool)}));
  return RowIndex(static_cast<uint32_t>(profiles_.size() - 1));
}

uint64_t Staging::poolBytes() const {
  uint64_t bytes = 0;
  for (const auto& profile : profiles_)
    bytes += profile->layout.bytes;
  return bytes;
}

StatusOr<std::unique_ptr<ExportedPool>> Staging::createOneShot(Device device, uint64_t bytes) const {
  return backend_->createPool("latentd-one-shot", oneShotLayout(device, bytes, spec_));
}

void Staging::keepOneShot(SlotIndex ticket, std::unique_ptr<ExportedPool> buffer, uint64_t reserved) {
  LATENTD_CHECK(one_shots_[ticket.value].buffer == nullptr, "a ticket holds one buffer at a time");
  one_shots_[ticket.value] = {std::move(buffer), reserved};
}

Staging::Freed Staging::release(const AckLedger::Entry& entry) {
  Freed freed;
  for (size_t i = 0; i < entry.slots.size(); ++i) {
    const SlotRef& ref = entry.slots[i];
    row(ref.row).release(ref.slot, entry.copied_by[i]);
    if (ref.row != ticketRow()) continue;
    OneShot& one_shot = one_shots_[ref.slot.value];
    freed.bytes += std::exchange(one_shot.reserved, 0);
    if (one_shot.buffer != nullptr) freed.buffers.push_back(std::move(one_shot.buffer));
  }
  return freed;
}

uint32_t Staging::slotsInUse() const {
  uint32_t count = tickets_.published();
  for (const auto& profile : profiles_)
    count += profile->slots.published();
  return count;
}

StatusOr<bool> Staging::tryDropAttachments(Rank consumer) {
  for (const auto& profile : profiles_) {
    LATENTD_ASSIGN_OR_RETURN(const bool dropped, profile->pool->tryDropAttachment(consumer));
    if (!dropped) return false;
  }
  return true;
}

}  // namespace latentd::channel
