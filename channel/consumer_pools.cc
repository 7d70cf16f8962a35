#include <string>
#include <utility>

#include "channel/consumer_core.h"
#include "channel/message.h"

// The part of ConsumerCore that maps what producer ranks export: pools, once and again, and one-shot buffers.
namespace latentd::channel {

Status ConsumerCore::onPool(size_t rank, const v1::PoolAnnounce& announcement, Frame& frame) {
  Source& source = sources_[rank];
  LATENTD_ASSIGN_OR_RETURN(const TensorDesc desc, TensorDesc::parse(announcement.desc()));
  const PoolLayout layout = poolLayout(desc, spec_);
  const auto known = source.pools.find(announcement.profile());
  const bool expected = announcement.profile() < spec_.profiles_max && desc.bytes() > 0 &&
                        announcement.slot_stride() == layout.slot_stride && announcement.pool_bytes() == layout.bytes &&
                        (known == source.pools.end() || (known->second.desc == desc && known->second.pool == nullptr));
  if (!expected) {
    return makeStatus(absl::StatusCode::kInternal, "pool " + std::to_string(announcement.profile()) + " for " +
                                                       desc.toString() + " is out of bounds or announced twice");
  }
  Mapped mapped{desc, layout, nullptr, absl::OkStatus()};
  if (frame.fds_lost) {
    mapped.status = makeStatus(absl::StatusCode::kResourceExhausted,
                               "no descriptor was free for a pool of " + spec_.edge + ": raise the open files limit");
  } else {
    StatusOr<std::shared_ptr<ImportedPool>> pool =
        context_.backend->importPool(announcement.handle(), std::move(frame.fds), layout);
    mapped.status = annotate(pool.status(), "mapping a pool for " + desc.toString() + " of " + spec_.edge);
    if (pool.ok()) mapped.pool = *std::move(pool);
  }
  v1::Message message = newMessage();
  v1::PoolAttached& attached = *message.mutable_pool_attached();
  attached.set_profile(announcement.profile());
  writeStatus(mapped.status, *attached.mutable_status());
  if (mapped.pool != nullptr) attached.set_handle(mapped.pool->attachment());
  // Want of memory or descriptors ends artifacts, not the channel; anything else is the peer's doing.
  const bool wanting = mapped.status.code() == absl::StatusCode::kResourceExhausted;
  const Status status = mapped.status;
  source.pools.insert_or_assign(announcement.profile(), std::move(mapped));
  sendTo(source, message);
  for (auto& [sequence, artifact] : artifacts_)
    arriveIfComplete(artifact);
  return wanting ? absl::OkStatus() : status;
}

Status ConsumerCore::importOneShot(Record& record, const v1::Ticket& ticket, Frame& frame) {
  if (ticket.bytes() == 0) return absl::OkStatus();
  Device device;
  for (const RecordShape::Leaf& leaf : record.shape->leaves) {
    if (leaf.unpooled_offset) device = leaf.desc.device();
  }
  if (frame.fds_lost) {
    record.import_status =
        makeStatus(absl::StatusCode::kResourceExhausted,
                   "no descriptor was free for a buffer of " + spec_.edge + ": raise the open files limit");
    return absl::OkStatus();
  }
  StatusOr<std::shared_ptr<ImportedPool>> buffer =
      context_.backend->importPool(ticket.handle(), std::move(frame.fds), oneShotLayout(device, ticket.bytes(), spec_));
  if (buffer.ok()) {
    record.ticket->buffer = *std::move(buffer);
    return absl::OkStatus();
  }
  record.import_status = annotate(buffer.status(), "mapping a buffer of " + spec_.edge);
  return buffer.status().code() == absl::StatusCode::kResourceExhausted ? absl::OkStatus() : record.import_status;
}

void ConsumerCore::requestLostPools(size_t rank, const Record& record) {
  for (const RecordShape::Leaf& leaf : record.shape->leaves) {
    if (!leaf.row) continue;
    Mapped& mapped = sources_[rank].pools.at(leaf.row->value);
    if (mapped.pool != nullptr || mapped.requested) continue;
    mapped.requested = true;
    v1::Message message = newMessage();
    message.mutable_pool_request()->set_profile(leaf.row->value);
    sendTo(sources_[rank], message);
  }
}

bool ConsumerCore::awaitsPool(const Artifact& artifact) const {
  for (size_t p = 0; p < artifact.records.size(); ++p) {
    if (artifact.records[p] == nullptr) continue;
    for (const RecordShape::Leaf& leaf : artifact.records[p]->shape->leaves) {
      if (leaf.row && sources_[p].pools.at(leaf.row->value).requested) return true;
    }
  }
  return false;
}

void ConsumerCore::arriveIfComplete(Artifact& artifact) {
  if (!artifact.state.is(ArtifactState::kAwaited) || artifact.ended_by != everyRank() || awaitsPool(artifact)) return;
  artifact.state.move(ArtifactState::kArrived);
}

}  // namespace latentd::channel
