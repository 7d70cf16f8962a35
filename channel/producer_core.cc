#include "channel/producer_core.h"

#include <algorithm>
#include <stop_token>
#include <utility>

#include "channel/handoff_timer.h"
#include "channel/limits.h"
#include "channel/message.h"
#include "channel/transfer_plan.h"
#include "channel/tree_codec.h"
#include "runtime/base/check.h"
#include "runtime/base/fault_point.h"

namespace latentd::channel {
namespace {

// How often a waiting call looks whether its peer moves: often enough that a time-out is late by little.
constexpr std::chrono::milliseconds kLookMax{100};

}  // namespace

struct ProducerCore::Draft {
  struct Taken {
    RowIndex row;
    SlotIndex slot;
  };

  SequenceNumber sequence;
  std::vector<TensorView> leaves;
  std::shared_ptr<const RecordShape> last;  // this one's shape is that of the last
  std::shared_ptr<RecordShape> fresh;       // or another one
  std::vector<Taken> taken;                 // of the pooled leaves, in their order, then the ticket
  std::vector<uint32_t> unpooled;           // leaves without a pool
  std::unique_ptr<ExportedPool> one_shot;   // holds them
  uint64_t one_shot_bytes = 0;
  uint64_t reserved = 0;
  uint64_t bytes = 0;
  Clock::TimePoint start;
  Clock::Duration slot_wait{};

  std::shared_ptr<const RecordShape> shape() const { return last != nullptr ? last : fresh; }
};

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

bool ProducerCore::isCut(const TensorView& leaf) const {
  if (leaf.tokens) return leaf.tokens->cut != TokenCut::kNone;
  return spec_.producer_shard_dim && !leaf.whole && resolveDim(spec_.producer_shard_dim, leaf.shape.size());
}

Status ProducerCore::checkTokens(const TensorView& leaf) const {
  if (!leaf.tokens) return absl::OkStatus();
  LATENTD_RETURN_IF_ERROR(annotate(checkTokenPart(*leaf.tokens, leaf.shape), "publishing on " + spec_.edge));
  const TokenCut expected = leaf.whole ? TokenCut::kNone : spec_.producer_tokens;
  if (leaf.tokens->cut == expected) return absl::OkStatus();
  return makeStatus(absl::StatusCode::kInvalidArgument, "publishing on " + spec_.edge + ": a token grid is cut along " +
                                                            std::string(toString(leaf.tokens->cut)) +
                                                            ", the channel expects " + std::string(toString(expected)));
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

bool ProducerCore::isLikeLast(const std::vector<TensorView>& leaves, const ArtifactTree& tree) const {
  if (last_shape_ == nullptr || leaves.size() != last_shape_->leaves.size()) return false;
  const auto same = [](const TensorView& leaf, const RecordShape::Leaf& last) {
    return last.desc.isOf(leaf) && leaf.whole == last.whole && leaf.tokens == last.tokens;
  };
  return std::equal(leaves.begin(), leaves.end(), last_shape_->leaves.begin(), same) &&
         isEncodedAs(tree, leaves, last_shape_->tree);
}

Status ProducerCore::makeShape(Draft& draft, const ArtifactTree& tree) {
  draft.fresh = std::make_shared<RecordShape>();
  LATENTD_RETURN_IF_ERROR(encodeTree(tree, draft.leaves, draft.fresh->tree));
  for (const TensorView& leaf : draft.leaves) {
    LATENTD_ASSIGN_OR_RETURN(TensorDesc desc, TensorDesc::of(leaf));
    LATENTD_RETURN_IF_ERROR(checkTokens(leaf));
    draft.fresh->leaves.push_back({std::move(desc), leaf.whole, leaf.tokens, std::nullopt, 0, std::nullopt});
  }
  size_t pooled = 0;
  for (uint32_t i = 0; i < draft.leaves.size(); ++i) {
    RecordShape::Leaf& leaf = draft.fresh->leaves[i];
    // What no dimension cuts is the same on every rank: rank 0's copy is enough.
    const bool staged_here = leaf.desc.bytes() > 0 && (isCut(draft.leaves[i]) || rank_ == Rank(0));
    if (!staged_here) continue;
    LATENTD_ASSIGN_OR_RETURN(leaf.row, profileOf(i, leaf.desc));
    if (leaf.row) {
      leaf.slot_at = pooled++;
    } else {
      draft.unpooled.push_back(i);
    }
  }
  return absl::OkStatus();
}

Status ProducerCore::stageLeaf(Draft& draft, uint32_t index, const WaitOptions& wait) {
  const std::shared_ptr<const RecordShape> shape = draft.shape();
  const RecordShape::Leaf& leaf = shape->leaves[index];
  if (!leaf.row) return absl::OkStatus();
  draft.bytes += leaf.desc.bytes();
  LATENTD_ASSIGN_OR_RETURN(const SlotIndex slot, acquire(draft, *leaf.row, 0, wait));
  draft.taken.push_back({*leaf.row, slot});
  ExportedPool* pool = nullptr;
  uint64_t copied_by = 0;
  {
    MutexLock lock(mutex_);
    pool = staging_.profile(*leaf.row).pool.get();
    copied_by = staging_.profile(*leaf.row).slots.copiedBy(slot);
  }
  LATENTD_FAULT_POINT(context_.faults, "channel.producer.filling");
  if (draft.taken.size() == 1) (void)sayComing();
  const HandoffTimer filling(wait, *context_.clock, HandoffPhase::kStaging, draft.sequence);
  LATENTD_RETURN_IF_ERROR(pool->fill(slot, 0, draft.leaves[index], copied_by));
  control_->noteFill(*leaf.row, slot);
  filling.end(leaf.desc.bytes());
  return absl::OkStatus();
}

Status ProducerCore::stageUnpooled(Draft& draft, const WaitOptions& wait) {
  uint64_t bytes = 0;
  for (const uint32_t index : draft.unpooled) {
    if (draft.leaves[index].device != draft.leaves[draft.unpooled[0]].device) {
      return makeStatus(absl::StatusCode::kInvalidArgument,
                        "tensors beyond profiles_max (" + std::to_string(spec_.profiles_max) + ") of " + spec_.edge +
                            " lie on several devices: raise profiles_max");
    }
    RecordShape::Leaf& leaf = draft.fresh->leaves[index];
    leaf.unpooled_offset = bytes;
    draft.bytes += leaf.desc.bytes();
    bytes = roundUp(bytes + leaf.desc.bytes(), kLeafAlignment);
  }
  const uint64_t reserved = roundUp(bytes, kSlotAlignment);  // what the buffer really takes
  if (reserved > spec_.unpooled_bytes_max) {
    return makeStatus(absl::StatusCode::kResourceExhausted,
                      "tensors of " + std::to_string(bytes) + " bytes have no pool on " + spec_.edge +
                          ", more than unpooled_bytes_max (" + std::to_string(spec_.unpooled_bytes_max) +
                          "): raise it, or profiles_max (" + std::to_string(spec_.profiles_max) + ")");
  }
  LATENTD_ASSIGN_OR_RETURN(const SlotIndex ticket, acquire(draft, staging_.ticketRow(), reserved, wait));
  draft.taken.push_back({staging_.ticketRow(), ticket});
  draft.one_shot_bytes = bytes;
  draft.reserved = reserved;
  if (bytes == 0) return absl::OkStatus();
  LATENTD_ASSIGN_OR_RETURN(draft.one_shot, staging_.createOneShot(draft.leaves[draft.unpooled[0]].device, bytes));
  for (const uint32_t index : draft.unpooled) {
    const RecordShape::Leaf& leaf = draft.fresh->leaves[index];
    const HandoffTimer filling(wait, *context_.clock, HandoffPhase::kStaging, draft.sequence);
    LATENTD_RETURN_IF_ERROR(draft.one_shot->fill(SlotIndex(0), *leaf.unpooled_offset, draft.leaves[index], 0));
    filling.end(leaf.desc.bytes());
  }
  return absl::OkStatus();
}

StatusOr<std::optional<RowIndex>> ProducerCore::profileOf(uint32_t leaf, const TensorDesc& desc) {
  {
    MutexLock lock(mutex_);
    const std::optional<RowIndex> found = staging_.findProfile(leaf, desc);
    if (found || !staging_.canAddProfile()) return found;
  }
  // Only publish() adds profiles, so nobody adds this one meanwhile.
  StatusOr<std::unique_ptr<ExportedPool>> pool = staging_.createPool(desc);
  if (!pool.ok()) return annotate(pool.status(), "pool for " + desc.toString() + " of " + spec_.edge);
  MutexLock lock(mutex_);
  const RowIndex row = staging_.addProfile(leaf, desc, *std::move(pool));
  for (Peer& peer : peers_)
    LATENTD_RETURN_IF_ERROR(announce(row, peer));
  return std::optional<RowIndex>(row);
}

StatusOr<SlotIndex> ProducerCore::acquire(Draft& draft, RowIndex row, uint64_t unpooled_bytes,
                                          const WaitOptions& wait) {
  const Clock::TimePoint start = context_.clock->now();
  const HandoffTimer waiting(wait, *context_.clock, HandoffPhase::kSlotWait, draft.sequence);
  bool waited = false;
  LATENTD_ASSIGN_OR_RETURN(const SlotIndex slot, acquireSlot(row, unpooled_bytes, wait, waited));
  if (!waited) return slot;
  draft.slot_wait += context_.clock->now() - start;
  waiting.end();
  return slot;
}

StatusOr<SlotIndex> ProducerCore::acquireSlot(RowIndex row, uint64_t unpooled_bytes, const WaitOptions& wait,
                                              bool& waited) {
  // Made before the lock is taken: a request that was made already calls back at once.
  const std::stop_callback wake(wait.cancel, [this] {
    MutexLock lock(mutex_);
    changed_.notifyAll();
  });
  std::vector<ProgressWatch> watches;
  MutexLock lock(mutex_);
  for (;;) {
    LATENTD_RETURN_IF_ERROR(failure_);
    if (staging_.canReserve(unpooled_bytes)) {
      if (const std::optional<SlotIndex> slot = staging_.row(row).tryAcquire()) {
        staging_.reserve(unpooled_bytes);
        return *slot;
      }
    }
    waited = true;
    LATENTD_RETURN_IF_ERROR(waitOnce(row, wait, watches));
  }
}

Status ProducerCore::waitOnce(RowIndex row, const WaitOptions& wait, std::vector<ProgressWatch>& watches) {
  const std::string what = "waiting for a slot of " + spec_.edge;
  if (wait.cancel.stop_requested()) return makeStatus(absl::StatusCode::kCancelled, what + ": cancelled");
  const Clock::TimePoint now = context_.clock->now();
  if (wait.deadline && now >= *wait.deadline) {
    return makeStatus(absl::StatusCode::kDeadlineExceeded, what + ": the caller's deadline passed");
  }
  const uint64_t held_up_by = ledger_.waitingFor(row);
  for (uint32_t c = 0; c < spec_.consumer_ranks; ++c) {
    const uint64_t word = control_->consumerProgress(Rank(c));
    if (watches.size() == c) watches.emplace_back(*context_.clock, word);
    if ((held_up_by >> c & 1) == 0) watches[c] = ProgressWatch(*context_.clock, word);
    if (watches[c].still(word) < spec_.progress_timeout) continue;
    failLocked(
        makeStatus(absl::StatusCode::kDeadlineExceeded, what + ": " + describe(Rank(c)) + " made no progress for " +
                                                            std::to_string(spec_.progress_timeout.count()) + " ms"));
    return failure_;
  }
  Clock::Duration look = std::min<Clock::Duration>(kLookMax, spec_.progress_timeout / 4);
  if (wait.deadline) look = std::min<Clock::Duration>(look, *wait.deadline - now);
  changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + look);
  return absl::OkStatus();
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
