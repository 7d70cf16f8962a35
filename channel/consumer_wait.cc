#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <stop_token>
#include <string>
#include <thread>

#include "channel/consumer_core.h"
#include "channel/limits.h"

// The part of ConsumerCore that waits for a number.
namespace latentd::channel {
namespace {

// How often a call that looks for what is about to come looks at words of memory before it lets others run and reads
// its sockets: a microsecond or two, which is what those take.
constexpr int kLooksARound = 100;

}  // namespace

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

}  // namespace latentd::channel
