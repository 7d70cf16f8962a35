#include "channel/producer_core.h"

#include <string>
#include <utility>

#include "channel/handoff_timer.h"
#include "channel/limits.h"
#include "channel/message.h"
#include "channel/tree_codec.h"
#include "runtime/base/check.h"
#include "runtime/base/fault_point.h"

namespace latentd::channel {

ProducerCore::ProducerCore(const ChannelSpec& spec, Rank rank, const ChannelContext& context,
                           ProducerCallbacks callbacks)
    : spec_(spec),
      rank_(rank),
      context_(context),
      callbacks_(std::move(callbacks)),
      publishes_(rank.value < publishingRanks(spec)),
      staging_(spec, context.backend),
      ledger_(spec.consumer_ranks) {
  if (!publishes_) return;
  for (uint32_t c = 0; c < spec.consumer_ranks; ++c)
    peers_.emplace_back(*context.loop);
  for (Peer& peer : peers_)
    links_.push_back(&peer.link);
  v1::Message message = newMessage();
  message.mutable_coming();
  coming_.bytes = message.SerializeAsString();
}

void ProducerCore::reach(std::string_view fault_point) const {
  // Past the point where publishing could fail: the point can only stop or end the process.
  if (context_.faults != nullptr) context_.faults->hit(fault_point).IgnoreError();
}

// ---- publish -------------------------------------------------------------------------------------------------

Status ProducerCore::checkOpenNumber(SequenceNumber sequence) const {
  LATENTD_RETURN_IF_ERROR(failure_);
  const auto name = [&] { return "number " + std::to_string(sequence.value) + " of " + spec_.edge; };
  if (ended_.contains(sequence) || publishing_ == sequence) {
    return makeStatus(absl::StatusCode::kAlreadyExists, name() + " has ended already");
  }
  if (!ended_.canInsert(sequence)) {
    return makeStatus(absl::StatusCode::kResourceExhausted,
                      name() + " is too far ahead: number " + std::to_string(ended_.next().value) + " has not ended");
  }
  return absl::OkStatus();
}

Status ProducerCore::publish(SequenceNumber sequence, const ArtifactTree& tree, const WaitOptions& wait) {
  if (!publishes_) return absl::OkStatus();
  const HandoffTimer publishing(wait, *context_.clock, HandoffPhase::kPublish, sequence);
  Draft draft;
  draft.sequence = sequence;
  draft.start = context_.clock->now();
  {
    MutexLock lock(mutex_);
    LATENTD_RETURN_IF_ERROR(checkOpenNumber(sequence));
    LATENTD_CHECK(!publishing_, "publish() from two threads at once");
    if (last_published_ && sequence < *last_published_) {
      return makeStatus(absl::StatusCode::kInvalidArgument,
                        "number " + std::to_string(sequence.value) + " of " + spec_.edge + " comes after " +
                            std::to_string(last_published_->value) + ": publish in rising order, or abort it");
    }
    publishing_ = sequence;
  }
  const Status published = publishNow(draft, tree, wait);
  if (!published.ok()) giveBack(draft);
  {
    MutexLock lock(mutex_);
    publishing_.reset();
    advanceRetireLocked();
  }
  if (published.ok()) {
    flushPeers();
    reach("channel.producer.sent");
    publishing.end(draft.bytes);
  }
  return published;
}

Status ProducerCore::publishNow(Draft& draft, const ArtifactTree& tree, const WaitOptions& wait) {
  draft.leaves = distinctLeaves(tree);
  if (isLikeLast(draft.leaves, tree)) {
    draft.last = last_shape_;
  } else {
    LATENTD_RETURN_IF_ERROR(makeShape(draft, tree));
  }
  for (uint32_t i = 0; i < draft.leaves.size(); ++i)
    LATENTD_RETURN_IF_ERROR(stageLeaf(draft, i, wait));
  if (!draft.unpooled.empty() || draft.taken.empty()) LATENTD_RETURN_IF_ERROR(stageUnpooled(draft, wait));
  return commit(draft);
}

Status ProducerCore::commit(Draft& draft) {
  MutexLock lock(mutex_);
  LATENTD_RETURN_IF_ERROR(failure_);
  AckLedger::Entry entry;
  Record record{draft.sequence, draft.shape(), {}, std::nullopt, absl::OkStatus()};
  for (const Draft::Taken& taken : draft.taken) {
    const SlotRef ref{taken.row, taken.slot, staging_.row(taken.row).nextGeneration(taken.slot)};
    entry.slots.push_back(ref);
    if (taken.row == staging_.ticketRow()) {
      record.ticket = {ref, draft.one_shot_bytes, nullptr};
    } else {
      record.slots.push_back(ref);
    }
  }
  Handle handle = draft.one_shot != nullptr ? draft.one_shot->handle() : Handle{};
  v1::Message message = newMessage();
  if (draft.last != nullptr) {
    writeAgain(record, *message.mutable_again());
  } else {
    writeRecord(record, handle.bytes, *message.mutable_publication());
  }
  LATENTD_ASSIGN_OR_RETURN(const OutFrame frame, encodeMessage(message, std::move(handle)));

  // Nothing can fail from here on.
  for (const SlotRef& ref : entry.slots) {
    staging_.row(ref.row).publish(ref.slot);
    control_->publish(ref);
    if (ref.row == staging_.ticketRow()) {
      staging_.keepOneShot(ref.slot, std::move(draft.one_shot), draft.reserved);
    }
  }
  reach("channel.producer.published");
  entry.sequence = draft.sequence;
  entry.bytes = draft.bytes;
  entry.pooled = draft.unpooled.empty();
  entry.start = draft.start;
  entry.slot_wait = draft.slot_wait;
  ledger_.add(std::move(entry));
  ended_.insert(draft.sequence);
  last_published_ = draft.sequence;
  last_shape_ = record.ticket ? nullptr : record.shape;
  announced_.reset();
  comings_ = 0;
  ++stats_.published;
  stats_.bytes_staged += draft.bytes;
  stats_.slot_wait += draft.slot_wait;
  if (!draft.unpooled.empty()) ++stats_.unpooled_artifacts;
  control_->noteProducerProgress();
  for (Peer& peer : peers_)
    enqueueFor(peer, frame);
  return absl::OkStatus();
}

void ProducerCore::flushPeers() {
  for (PeerLink* const link : links_) {
    const Status flushed = link->flush();
    if (flushed.code() != absl::StatusCode::kResourceExhausted) continue;
    MutexLock lock(mutex_);
    failLocked(flushed);
  }
}

void ProducerCore::giveBack(Draft& draft) {
  MutexLock lock(mutex_);
  for (const Draft::Taken& taken : draft.taken)
    staging_.row(taken.row).abandon(taken.slot);
  staging_.unreserve(draft.reserved);
  changed_.notifyAll();
}

// ---- the other calls -----------------------------------------------------------------------------------------

Status ProducerCore::abort(SequenceNumber sequence, const Status& reason) {
  if (reason.ok()) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "a number is aborted with an error, not with OK");
  }
  if (!publishes_) return absl::OkStatus();
  v1::Message message = newMessage();
  message.mutable_aborted()->set_sequence(sequence.value);
  writeStatus(reason, *message.mutable_aborted()->mutable_status());
  LATENTD_ASSIGN_OR_RETURN(const OutFrame frame, encodeMessage(message));
  MutexLock lock(mutex_);
  LATENTD_RETURN_IF_ERROR(checkOpenNumber(sequence));
  ended_.insert(sequence);
  announced_.reset();
  comings_ = 0;
  ++stats_.aborted;
  control_->noteProducerProgress();
  for (Peer& peer : peers_)
    sendTo(peer, frame);
  return absl::OkStatus();
}

void ProducerCore::noteProgress() {
  if (publishes_) control_->noteProducerProgress();
}

bool ProducerCore::bound() const {
  MutexLock lock(mutex_);
  return bound_ || !publishes_;
}

ProducerStats ProducerCore::stats() const {
  MutexLock lock(mutex_);
  ProducerStats stats = stats_;
  stats.slots_in_use = staging_.slotsInUse();
  stats.pools = staging_.profileCount();
  stats.pool_bytes = staging_.poolBytes();
  stats.unpooled_bytes = staging_.unpooledBytes();
  return stats;
}

void ProducerCore::close() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = makeStatus(absl::StatusCode::kCancelled, "the producer of " + spec_.edge + " is closed");
  retireLocked(absl::OkStatus());
}

Status ProducerCore::join(Clock::TimePoint deadline) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) {
      return makeStatus(absl::StatusCode::kFailedPrecondition, "the producer of " + spec_.edge + " was not closed");
    }
    while (!state_.is(EndpointState::kRetired)) {
      if (changed_.waitUntil(mutex_, deadline) || state_.is(EndpointState::kRetired)) continue;
      return makeStatus(absl::StatusCode::kDeadlineExceeded,
                        "a consumer rank of " + spec_.edge + " does not let go of the channel: recycle it");
    }
  }
  detach();
  return absl::OkStatus();
}

}  // namespace latentd::channel
