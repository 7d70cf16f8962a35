#include "channel/consumer_core.h"

#include <sys/eventfd.h>

#include <stop_token>
#include <string>
#include <utility>

#include "channel/handoff_timer.h"
#include "channel/limits.h"
#include "runtime/base/check.h"

namespace latentd::channel {

// What a held artifact keeps: the mappings, and the duty to acknowledge.
class ConsumerCore::ArtifactHold final : public HeldArtifact::Hold {
 public:
  ArtifactHold(std::shared_ptr<ConsumerCore> core, SequenceNumber sequence, Claim claim, bool completed)
      : core_(std::move(core)), sequence_(sequence), claim_(std::move(claim)), completed_(completed) {}
  ~ArtifactHold() override {
    const Status completed = completed_ ? absl::OkStatus() : completeReads(claim_);
    core_->finish(sequence_, claim_, completed).IgnoreError();
  }

 private:
  const std::shared_ptr<ConsumerCore> core_;  // owners: this and the endpoint
  const SequenceNumber sequence_;
  const Claim claim_;
  const bool completed_;  // the end of the reads is recorded
};

ConsumerCore::ConsumerCore(const ChannelSpec& spec, Rank rank, Device device, const ChannelContext& context,
                           ConsumerCallbacks callbacks)
    : spec_(spec),
      rank_(rank),
      device_(device),
      context_(context),
      callbacks_(std::move(callbacks)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

// ---- receive, take and borrow ---------------------------------------------------------------------------------

StatusOr<ConsumerCore::Copied> ConsumerCore::copy(SequenceNumber sequence, Allocator& allocator,
                                                  const WaitOptions& wait) {
  const HandoffTimer waiting(wait, *context_.clock, HandoffPhase::kInputWait, sequence);
  Ahead ahead(allocator);
  LATENTD_ASSIGN_OR_RETURN(Claim claim, await(sequence, ArtifactState::kCopying, &ahead, wait));
  waiting.end();
  if (takeAhead(ahead, claim, wait)) return Copied{std::move(ahead.targets.tree), std::move(claim)};
  const HandoffTimer copying(wait, *context_.clock, HandoffPhase::kCopy, sequence);
  StatusOr<ArtifactTree> tree = ArtifactTree();
  try {
    tree = copyOut(claim, allocator, std::move(ahead.targets));
  } catch (...) {
    const Status completed = completeReads(claim);
    if (completed.ok()) {
      giveUp(sequence, "failed");
    } else {
      finish(sequence, claim, completed).IgnoreError();
    }
    throw;
  }
  // Also of copies that were submitted before one that failed, and may still run.
  const Status completed = completeReads(claim);
  if (!completed.ok()) return finish(sequence, claim, completed);
  if (!tree.ok()) {
    giveUp(sequence, "failed");
    return annotate(tree.status(), "receiving number " + std::to_string(sequence.value) + " of " + spec_.edge);
  }
  copying.end(claim.plan->bytes);
  return Copied{*std::move(tree), std::move(claim)};
}

StatusOr<ArtifactTree> ConsumerCore::receive(SequenceNumber sequence, Allocator& allocator, const WaitOptions& wait) {
  LATENTD_ASSIGN_OR_RETURN(Copied copied, copy(sequence, allocator, wait));
  const HandoffTimer acknowledging(wait, *context_.clock, HandoffPhase::kAcknowledge, sequence);
  LATENTD_RETURN_IF_ERROR(finish(sequence, copied.claim, absl::OkStatus()));
  acknowledging.end();
  return std::move(copied.tree);
}

StatusOr<HeldArtifact> ConsumerCore::take(SequenceNumber sequence, Allocator& allocator, const WaitOptions& wait) {
  LATENTD_ASSIGN_OR_RETURN(Copied copied, copy(sequence, allocator, wait));
  auto hold = std::make_unique<ArtifactHold>(shared_from_this(), sequence, std::move(copied.claim), true);
  return HeldArtifact(std::move(copied.tree), std::move(hold));
}

StatusOr<HeldArtifact> ConsumerCore::borrow(SequenceNumber sequence, const WaitOptions& wait) {
  const HandoffTimer waiting(wait, *context_.clock, HandoffPhase::kInputWait, sequence);
  LATENTD_ASSIGN_OR_RETURN(Claim claim, await(sequence, ArtifactState::kBorrowed, nullptr, wait));
  waiting.end();
  StatusOr<ArtifactTree> tree = lend(claim);
  auto hold = std::make_unique<ArtifactHold>(shared_from_this(), sequence, std::move(claim), false);
  LATENTD_RETURN_IF_ERROR(tree.status());
  return HeldArtifact(*std::move(tree), std::move(hold));
}

// ---- the end of a number -------------------------------------------------------------------------------------

Status ConsumerCore::completeReads(const Claim& claim) {
  for (size_t p = 0; p < claim.records.size(); ++p) {
    const std::vector<std::shared_ptr<ImportedPool>>& pools = claim.plan->pools[p];
    for (size_t i = 0; i < pools.size(); ++i) {
      if (pools[i] == nullptr) continue;
      LATENTD_RETURN_IF_ERROR(pools[i]->complete(claim.records[p]->slotOf(claim.plan->shapes[p]->leaves[i])));
    }
  }
  return absl::OkStatus();
}

Status ConsumerCore::finish(SequenceNumber sequence, const Claim& claim, const Status& completed) {
  MutexLock lock(mutex_);
  const auto found = artifacts_.find(sequence);
  LATENTD_CHECK(found != artifacts_.end(), "a number that is read stays known");
  const bool borrowed = found->second.state.is(ArtifactState::kBorrowed);
  if (completed.ok() && failure_.ok()) {
    for (size_t p = 0; p < claim.records.size(); ++p)
      acknowledge(p, *claim.records[p], claim.plan->read[p]);
    stats_.bytes_read += claim.plan->bytes;
    ++(borrowed ? stats_.borrowed : stats_.received);
  }
  found->second.state.move(ArtifactState::kEnded);
  artifacts_.erase(found);
  ended_.insert(sequence);
  --readers_;
  if (!completed.ok()) failLocked(annotate(completed, "completing a read of " + spec_.edge));
  advanceRetireLocked();
  return failure_;
}

void ConsumerCore::giveUp(SequenceNumber sequence, std::string_view reason) {
  MutexLock lock(mutex_);
  Artifact& artifact = artifacts_.at(sequence);
  artifact.state.move(ArtifactState::kDiscarding);
  countDiscard(reason);
  if (failure_.ok()) discardArrived(artifact);
  --readers_;
  endIfComplete(sequence);
  advanceRetireLocked();
}

Status ConsumerCore::discard(SequenceNumber sequence, std::string_view reason,
                             std::function<void(const Status&)> done) {
  MutexLock lock(mutex_);
  LATENTD_RETURN_IF_ERROR(failure_);
  return rememberDiscard(sequence, reason, std::move(done));
}

Status ConsumerCore::rememberDiscard(SequenceNumber sequence, std::string_view reason,
                                     std::function<void(const Status&)> done) {
  LATENTD_ASSIGN_OR_RETURN(Artifact* const artifact, findOrAdd(sequence));
  if (artifact == nullptr || artifact->receiving || artifact->claimed) {
    return makeStatus(absl::StatusCode::kAlreadyExists, "number " + std::to_string(sequence.value) + " of " +
                                                            spec_.edge + " has ended here, or is being received");
  }
  artifact->claimed = true;
  artifact->done = std::move(done);
  if (!artifact->state.is(ArtifactState::kDiscarding)) artifact->state.move(ArtifactState::kDiscarding);
  countDiscard(reason);
  discardArrived(*artifact);
  endIfComplete(sequence);
  return absl::OkStatus();
}

Status ConsumerCore::discardAndWait(SequenceNumber sequence, std::string_view reason, const WaitOptions& wait) {
  // Shared with the callback, which may come after this call gave up waiting.
  struct Outcome {
    Mutex mutex;
    CondVar changed;
    std::optional<Status> status GUARDED_BY(mutex);
  };
  const auto outcome = std::make_shared<Outcome>();
  LATENTD_RETURN_IF_ERROR(discard(sequence, reason, [outcome](const Status& status) {
    MutexLock lock(outcome->mutex);
    outcome->status = status;
    outcome->changed.notifyAll();
  }));
  const std::stop_callback wake(wait.cancel, [outcome] {
    MutexLock lock(outcome->mutex);
    outcome->changed.notifyAll();
  });
  const std::string what = "discarding number " + std::to_string(sequence.value) + " of " + spec_.edge;
  MutexLock lock(outcome->mutex);
  while (!outcome->status) {
    if (wait.cancel.stop_requested()) return makeStatus(absl::StatusCode::kCancelled, what + ": cancelled");
    if (wait.deadline && context_.clock->now() >= *wait.deadline) {
      return makeStatus(absl::StatusCode::kDeadlineExceeded, what + ": the producer has not ended the number");
    }
    outcome->changed.waitUntil(outcome->mutex, std::chrono::steady_clock::now() + kLookMax);
  }
  return *outcome->status;
}

void ConsumerCore::countDiscard(std::string_view reason) {
  const std::string label(reason);
  const bool known = stats_.discarded.count(label) > 0 || stats_.discarded.size() < kDiscardReasonsMax;
  ++stats_.discarded[known ? label : "other"];
}

// ---- the other calls -----------------------------------------------------------------------------------------

void ConsumerCore::noteProgress() {
  for (ControlBlock& control : controls_)
    control.noteConsumerProgress(rank_);
}

ConsumerStats ConsumerCore::stats() const {
  MutexLock lock(mutex_);
  ConsumerStats stats = stats_;
  stats.pending = static_cast<uint32_t>(artifacts_.size());
  stats.pools_mapped = 0;
  for (const Source& source : sources_) {
    for (const auto& [profile, mapped] : source.pools)
      stats.pools_mapped += mapped.pool != nullptr ? 1 : 0;
  }
  return stats;
}

void ConsumerCore::close() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = makeStatus(absl::StatusCode::kCancelled, "the consumer of " + spec_.edge + " is closed");
  retireLocked();
}

Status ConsumerCore::join(Clock::TimePoint deadline) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) {
      return makeStatus(absl::StatusCode::kFailedPrecondition, "the consumer of " + spec_.edge + " was not closed");
    }
    while (!state_.is(EndpointState::kRetired)) {
      if (changed_.waitUntil(mutex_, deadline) || state_.is(EndpointState::kRetired)) continue;
      return makeStatus(absl::StatusCode::kDeadlineExceeded,
                        readers_ > 0
                            ? "artifacts of " + spec_.edge + " are still held or copied: release them"
                            : "a producer rank of " + spec_.edge + " does not let go of the channel: recycle it");
    }
  }
  detach();
  return absl::OkStatus();
}

}  // namespace latentd::channel
