#include <algorithm>
#include <utility>

#include "channel/consumer_core.h"
#include "channel/message.h"

// The part of ConsumerCore that ends: failures, deaths, and the exchange by which both sides let go.
namespace latentd::channel {

void ConsumerCore::sourceGone(size_t rank) {
  Source& source = sources_[rank];
  if (source.state.is(SourceState::kGone)) return;
  source.state.move(SourceState::kGone);
  failLocked(makeStatus(absl::StatusCode::kUnavailable, describe(rank) + " died: its connection ended"));
  context_.loop->post([self = shared_from_this()] { self->closeGoneLinks(); });
  advanceRetireLocked();
}

void ConsumerCore::closeGoneLinks() {
  MutexLock lock(mutex_);
  for (Source& source : sources_) {
    if (source.state.is(SourceState::kGone)) source.link.close();
  }
}

void ConsumerCore::failLocked(const Status& status, bool orderly) {
  if (!failure_.ok()) return;
  failure_ = status;
  if (!orderly) told_peers_ = status;
  if (!orderly && callbacks_.on_failed) callLater([this, status] { callbacks_.on_failed(status); });
  retireLocked();
}

void ConsumerCore::retireLocked() {
  state_.move(EndpointState::kRetiring);
  plan_ = nullptr;  // holds pools
  for (auto entry = artifacts_.begin(); entry != artifacts_.end();) {
    Artifact& artifact = entry->second;
    // What is being read ends when its reader does.
    if (artifact.state.is(ArtifactState::kCopying) || artifact.state.is(ArtifactState::kBorrowed)) {
      ++entry;
      continue;
    }
    if (artifact.done) callLater([done = std::move(artifact.done), status = failure_] { done(status); });
    entry = artifacts_.erase(entry);
  }
  wakeWaiters();
  advanceRetireLocked();
}

void ConsumerCore::advanceRetireLocked() {
  if (!state_.is(EndpointState::kRetiring) || readers_ > 0) return;
  for (Source& source : sources_) {
    if (source.state.is(SourceState::kUnmapped) || source.pools_gone) continue;
    // A device that never answers keeps its mappings: join() runs into its deadline and the process is recycled.
    const StatusOr<bool> unmapped = tryUnmapAll(source);
    if (unmapped.ok() && !*unmapped) lookAgainLocked();
    if (!unmapped.ok() || !*unmapped) continue;
    if (source.state.is(SourceState::kGone)) {
      source.pools.clear();
      source.pools_gone = true;
    }
    if (!source.state.is(SourceState::kBound)) continue;
    source.state.move(SourceState::kUnmapped);
    v1::Message message = newMessage();
    writeStatus(told_peers_, *message.mutable_retire_unmapped()->mutable_status());
    sendTo(source, message);
  }
  const auto gone = [](const Source& source) { return source.state.is(SourceState::kGone) && source.pools_gone; };
  if (!std::all_of(sources_.begin(), sources_.end(), gone)) return;
  state_.move(EndpointState::kRetired);
  if (callbacks_.on_retired) callLater(callbacks_.on_retired);
  changed_.notifyAll();
}

StatusOr<bool> ConsumerCore::tryUnmapAll(Source& source) {
  for (auto& [profile, mapped] : source.pools) {
    if (mapped.pool == nullptr) continue;
    LATENTD_ASSIGN_OR_RETURN(const bool unmapped, mapped.pool->tryUnmap());
    if (!unmapped) return false;
  }
  return true;
}

void ConsumerCore::lookAgainLocked() {
  drain_look_.request(*context_.loop, *context_.clock, [weak = weak_from_this()] {
    const auto core = weak.lock();
    if (!core || core->detached_) return;
    MutexLock lock(core->mutex_);
    core->drain_look_.done();
    core->advanceRetireLocked();
  });
}

void ConsumerCore::detach() {
  context_.loop->runAndWait([this] {
    detached_ = true;
    MutexLock lock(mutex_);
    for (Source& source : sources_)
      source.link.close();
  });
}

}  // namespace latentd::channel
