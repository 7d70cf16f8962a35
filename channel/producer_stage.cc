#include <algorithm>
#include <stop_token>
#include <string>
#include <utility>

#include "channel/handoff_timer.h"
#include "channel/limits.h"
#include "channel/producer_core.h"
#include "channel/transfer_plan.h"
#include "channel/tree_codec.h"
#include "runtime/base/fault_point.h"

// The part of ProducerCore that brings tensors into slots.
namespace latentd::channel {

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
  LATENTD_FAULT_POINT(context_.faults, "channel.producer.filled");
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

}  // namespace latentd::channel
