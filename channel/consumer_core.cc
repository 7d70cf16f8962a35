#include "channel/consumer_core.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <stop_token>
#include <thread>
#include <utility>

#include "channel/handoff_timer.h"
#include "channel/limits.h"
#include "runtime/base/check.h"

namespace latentd::channel {
namespace {

// How often a waiting call looks whether its peers move: often enough that a time-out is late by little.
constexpr std::chrono::milliseconds kLookMax{100};
// How often a call that looks for what is about to come looks at words of memory before it lets others run and reads
// its sockets: a microsecond or two, which is what those take.
constexpr int kLooksARound = 100;

}  // namespace

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
    completeReads(claim).IgnoreError();
    giveUp(sequence, "failed");
    throw;
  }
  // Also of copies that were submitted before one that failed, and may still run.
  const Status completed = completeReads(claim);
  if (!tree.ok()) {
    giveUp(sequence, "failed");
    return annotate(tree.status(), "receiving number " + std::to_string(sequence.value) + " of " + spec_.edge);
  }
  if (!completed.ok()) return finish(sequence, claim, completed);
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

StatusOr<ConsumerCore::Claim> ConsumerCore::await(SequenceNumber sequence, ArtifactState next, Ahead* ahead,
                                                  const WaitOptions& wait) {
  // Made before the lock is taken: a request that was made already calls back at once.
  const std::stop_callback wake(wait.cancel, [this] {
    MutexLock lock(mutex_);
    wakeWaiters();
  });
  MutexLock lock(mutex_);
  LATENTD_RETURN_IF_ERROR(failure_);
  LATENTD_ASSIGN_OR_RETURN(Artifact* const artifact, findOrAdd(sequence));
  if (artifact == nullptr || artifact->receiving || artifact->claimed) {
    return makeStatus(absl::StatusCode::kAlreadyExists, "number " + std::to_string(sequence.value) + " of " +
                                                            spec_.edge + " has ended here, or is being received");
  }
  artifact->receiving = true;
  const Status arrived = waitArrived(sequence, ahead, wait);
  // A failure of the channel forgets the numbers that nobody reads.
  const auto found = artifacts_.find(sequence);
  if (found == artifacts_.end()) return failure_;
  Artifact& waited = found->second;
  waited.receiving = false;
  LATENTD_RETURN_IF_ERROR(arrived);
  if (!waited.aborted.ok()) {
    const Status reason = waited.aborted;
    waited.claimed = true;
    ++stats_.aborted;
    endIfComplete(sequence);
    return reason;
  }
  StatusOr<Claim> claimed = claim(waited);
  if (claimed.ok() && next == ArtifactState::kBorrowed && !claimed->plan->canBeLent()) {
    return makeStatus(absl::StatusCode::kFailedPrecondition,
                      "number " + std::to_string(sequence.value) + " of " + spec_.edge +
                          " lies in the slots of several producer ranks, in runs of tokens, or on the other side of "
                          "the host: receive() it");
  }
  if (!claimed.ok()) {
    // The number ends here; the channel goes on.
    rememberDiscard(sequence, "failed", nullptr).IgnoreError();
    return claimed.status();
  }
  waited.claimed = true;
  waited.state.move(next);
  ++readers_;
  return claimed;
}

bool ConsumerCore::hasArrived(SequenceNumber sequence) const {
  const Artifact& artifact = artifacts_.at(sequence);
  return artifact.state.is(ArtifactState::kArrived) || !artifact.aborted.ok();
}

Status ConsumerCore::waitArrived(SequenceNumber sequence, Ahead* ahead, const WaitOptions& wait) {
  readSources();
  Waiting waiting{sequence, ahead, wait, {}};
  Status waited;
  while (waited.ok() && failure_.ok() && !hasArrived(sequence)) {
    if (!waiting.reads && !reading_) {
      waiting.reads = reading_ = true;
      setMuted(true);
      // Where somebody announces, it may have been said before anybody waited.
      if (announces_) {
        look_until_ = std::max(look_until_, context_.clock->now() + kFirstLook);
        coming_ = true;
      }
    }
    // What either does outside the lock, the channel may end meanwhile, and the number with it.
    if (ahead != nullptr && prepareIfComing(*ahead)) continue;
    const bool read = ahead != nullptr && waiting.reads && readIfFilled(*ahead, sequence);
    if (failure_.ok() && !hasArrived(sequence)) waited = waitOnce(waiting, read);
  }
  if (waiting.reads) {
    reading_ = false;
    setMuted(false);
    // Another call may take over.
    changed_.notifyAll();
  }
  return failure_.ok() ? waited : failure_;
}

Status ConsumerCore::waitOnce(Waiting& waiting, bool at_once) {
  const WaitOptions& wait = waiting.options;
  const auto what = [&] {
    return "waiting for number " + std::to_string(waiting.sequence.value) + " of " + spec_.edge;
  };
  if (wait.cancel.stop_requested()) return makeStatus(absl::StatusCode::kCancelled, what() + ": cancelled");
  const Clock::TimePoint now = context_.clock->now();
  if (wait.deadline && now >= *wait.deadline) {
    return makeStatus(absl::StatusCode::kDeadlineExceeded, what() + ": the caller's deadline passed");
  }
  const uint64_t ended_by = artifacts_.at(waiting.sequence).ended_by;
  for (size_t p = 0; p < sources_.size(); ++p) {
    const uint64_t word = sources_[p].control->producerProgress();
    if (waiting.watches.size() == p) waiting.watches.emplace_back(*context_.clock, word);
    if ((ended_by >> p & 1) != 0 || waiting.watches[p].still(word) < spec_.progress_timeout) continue;
    failLocked(makeStatus(absl::StatusCode::kDeadlineExceeded, what() + ": " + describe(p) + " made no progress for " +
                                                                   std::to_string(spec_.progress_timeout.count()) +
                                                                   " ms"));
    return failure_;
  }
  Clock::Duration longest = std::min<Clock::Duration>(kLookMax, spec_.progress_timeout / 4);
  if (wait.deadline) longest = std::min<Clock::Duration>(longest, *wait.deadline - now);
  if (!waiting.reads) {
    changed_.waitUntil(mutex_, std::chrono::steady_clock::now() + longest);
    return absl::OkStatus();
  }
  if (!at_once && now >= look_until_) {
    sleepUntilReadable(longest);
  } else if (!at_once) {
    lookAround(waiting);
  }
  if (readSources()) changed_.notifyAll();
  return absl::OkStatus();
}

void ConsumerCore::lookAround(const Waiting& waiting) {
  if (waiting.ahead != nullptr && !mayBeFilled(waiting.sequence)) {
    for (int round = 0; round < kLooksARound; ++round) {
      if (mayBeFilled(waiting.sequence)) return;
    }
  }
  letOthersRun();
}

void ConsumerCore::letOthersRun() {
  mutex_.unlock();
  // On a machine with few cores it may be the producer that waits for this one.
  std::this_thread::yield();
  mutex_.lock();
}

void ConsumerCore::sleepUntilReadable(Clock::Duration longest) {
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
  for (const Source& source : sources_) {
    if (source.link.isOpen()) polled.push_back({source.link.pollFd(), POLLIN, 0});
  }
  asleep_ = true;
  mutex_.unlock();
  const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(longest).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(wait_ms, 0)));
  mutex_.lock();
  asleep_ = false;
  uint64_t ignored;
  if (polled[0].revents != 0) [[maybe_unused]]
    const ssize_t drained = ::read(wake_.get(), &ignored, sizeof(ignored));
}

bool ConsumerCore::readSources() {
  bool any = false;
  for (size_t p = 0; p < sources_.size(); ++p)
    any = readSource(p) || any;
  return any;
}

void ConsumerCore::setMuted(bool muted) {
  for (Source& source : sources_) {
    if (source.link.isOpen()) source.link.setMuted(muted);
  }
}

void ConsumerCore::wakeWaiters() {
  changed_.notifyAll();
  const uint64_t one = 1;
  if (asleep_) [[maybe_unused]]
    const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
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
