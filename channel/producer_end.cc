#include <algorithm>

#include "channel/message.h"
#include "channel/producer_core.h"

// The part of ProducerCore that ends: failures, deaths, and the exchange by which both sides let go.
namespace latentd::channel {

void ProducerCore::peerGone(Rank rank) {
  Peer& peer = peers_[rank.value];
  if (peer.state.is(PeerState::kGone)) return;
  const bool unexpected = peer.state.is(PeerState::kBound);
  peer.link.close();
  peer.state.move(PeerState::kGone);
  if (unexpected) {
    failLocked(makeStatus(absl::StatusCode::kUnavailable, describe(rank) + " died: its connection ended"));
  }
  advanceRetireLocked();
}

void ProducerCore::failLocked(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  if (callbacks_.on_failed) callLater([this, status] { callbacks_.on_failed(status); });
  retireLocked(status);
}

void ProducerCore::retireLocked(const Status& told_peers) {
  state_.move(EndpointState::kRetiring);
  v1::Message message = newMessage();
  writeStatus(told_peers, *message.mutable_retire()->mutable_status());
  const StatusOr<OutFrame> frame = encodeMessage(message);
  for (Peer& peer : peers_) {
    if (peer.state.is(PeerState::kAbsent)) peer.state.move(PeerState::kGone);
    if (!peer.state.is(PeerState::kBound)) continue;
    peer.state.move(PeerState::kRetiring);
    sendTo(peer, *frame);
  }
  context_.loop->post([self = shared_from_this()] { self->closeListener(); });
  changed_.notifyAll();
  advanceRetireLocked();
}

void ProducerCore::advanceRetireLocked() {
  // A publication under way may be waiting for a consumer's events.
  if (!state_.is(EndpointState::kRetiring) || publishing_) return;
  for (uint32_t c = 0; c < peers_.size(); ++c) {
    if (!peers_[c].state.is(PeerState::kUnmapped)) continue;
    // A device that never answers keeps the events: join() runs into its deadline and the process is recycled.
    const StatusOr<bool> dropped = staging_.tryDropAttachments(Rank(c));
    if (!dropped.ok()) continue;
    if (!*dropped) {
      lookAgainLocked();
      continue;
    }
    v1::Message message = newMessage();
    message.mutable_retire_dropped();
    peers_[c].state.move(PeerState::kDropped);
    const StatusOr<OutFrame> frame = encodeMessage(message);
    sendTo(peers_[c], *frame);
  }
  if (!std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.state.is(PeerState::kGone); })) {
    return;
  }
  state_.move(EndpointState::kRetired);
  if (callbacks_.on_retired) callLater(callbacks_.on_retired);
  changed_.notifyAll();
}

void ProducerCore::lookAgainLocked() {
  drain_look_.request(*context_.loop, *context_.clock, [weak = weak_from_this()] {
    const auto core = weak.lock();
    if (!core || core->detached_) return;
    MutexLock lock(core->mutex_);
    core->drain_look_.done();
    core->advanceRetireLocked();
  });
}

void ProducerCore::closeListener() {
  if (listener_ == nullptr) return;
  context_.loop->unwatch(listener_watch_);
  listener_.reset();
  while (!strangers_.empty())
    dismiss(strangers_.begin()->first);
}

void ProducerCore::detach() {
  context_.loop->runAndWait([this] {
    closeListener();
    detached_ = true;
    MutexLock lock(mutex_);
    for (Peer& peer : peers_)
      peer.link.close();
  });
}

}  // namespace latentd::channel
