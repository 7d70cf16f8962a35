#include <sys/epoll.h>

#include <string>
#include <utility>

#include "channel/limits.h"
#include "channel/message.h"
#include "channel/producer_core.h"

// The part of ProducerCore that talks to consumer ranks.
namespace latentd::channel {
namespace {

// Messages of one consumer rank before the loop looks at others.
constexpr int kMessagesAtOnce = 64;

}  // namespace

v1::Message ProducerCore::newMessage() const {
  v1::Message message;
  message.set_epoch(spec_.producer_epoch.value);
  return message;
}

std::string ProducerCore::describe(Rank consumer) const {
  return "consumer rank " + std::to_string(consumer.value) + " of " + spec_.edge + " (epoch " +
         std::to_string(spec_.consumer_epoch.value) + ")";
}

void ProducerCore::callLater(std::function<void()> callback) {
  context_.loop->post([self = shared_from_this(), callback = std::move(callback)] {
    if (!self->detached_) callback();
  });
}

// ---- messages ------------------------------------------------------------------------------------------------

// A dead peer is noticed by reading; one that does not read is as good as dead.
void ProducerCore::sendTo(Peer& peer, OutFrame frame) {
  if (peer.state.is(PeerState::kGone)) return;
  const Status sent = peer.link.send(std::move(frame));
  if (sent.code() == absl::StatusCode::kResourceExhausted) failLocked(sent);
}

void ProducerCore::enqueueFor(Peer& peer, OutFrame frame) {
  if (peer.state.is(PeerState::kGone)) return;
  const Status queued = peer.link.enqueue(std::move(frame));
  if (!queued.ok()) failLocked(queued);
}

void ProducerCore::announce() {
  if (sayComing()) rehearse();
}

bool ProducerCore::sayComing() {
  if (!publishes_ || !context_.backend->asynchronous()) return false;
  {
    MutexLock lock(mutex_);
    const Clock::TimePoint now = context_.clock->now();
    const bool fresh = announced_ && now - *announced_ <= kComingFresh;
    // What is queued for a peer stays bounded.
    if (fresh || comings_ == kComingsMax || !failure_.ok()) return false;
    announced_ = now;
    ++comings_;
    for (Peer& peer : peers_) {
      if (peer.state.is(PeerState::kBound)) enqueueFor(peer, coming_);
    }
  }
  flushPeers();
  return true;
}

void ProducerCore::rehearse() {
  if (last_shape_ == nullptr) return;
  MutexLock lock(mutex_);
  for (const RecordShape::Leaf& leaf : last_shape_->leaves) {
    if (leaf.row) staging_.profile(*leaf.row).pool->rehearse();
  }
}

Status ProducerCore::announce(RowIndex row, Peer& peer) {
  const Staging::Profile& profile = staging_.profile(row);
  v1::Message message = newMessage();
  Handle handle = profile.pool->handle();
  v1::PoolAnnounce& announcement = *message.mutable_pool_announce();
  announcement.set_profile(row.value);
  announcement.set_leaf(profile.leaf);
  profile.desc.write(*announcement.mutable_desc());
  announcement.set_slot_stride(profile.layout.slot_stride);
  announcement.set_pool_bytes(profile.layout.bytes);
  announcement.set_handle(handle.bytes);
  LATENTD_ASSIGN_OR_RETURN(OutFrame frame, encodeMessage(message, std::move(handle)));
  sendTo(peer, std::move(frame));
  return absl::OkStatus();
}

void ProducerCore::onPeer(Rank rank, uint32_t events) {
  MutexLock lock(mutex_);
  PeerLink& link = peers_[rank.value].link;
  if (!link.isOpen()) return;
  if ((events & EPOLLOUT) != 0) link.flush().IgnoreError();  // a dead peer is noticed by reading
  const Status read = readPeer(rank);
  if (read.ok()) return;
  failLocked(unhandled(describe(rank), read));
  peerGone(rank);
}

Status ProducerCore::readPeer(Rank rank) {
  PeerLink& link = peers_[rank.value].link;
  Frame frame;
  v1::Message message;
  for (int i = 0; i < kMessagesAtOnce && link.isOpen(); ++i) {
    LATENTD_ASSIGN_OR_RETURN(const Link::Received received, link.receive(frame));
    if (received == Link::Received::kNothing) break;
    if (received == Link::Received::kClosed) {
      peerGone(rank);
      break;
    }
    LATENTD_RETURN_IF_ERROR(parseMessage(frame, message));
    if (message.epoch() != spec_.consumer_epoch.value) {
      ++stats_.stale_dropped;
      continue;
    }
    LATENTD_RETURN_IF_ERROR(onMessage(rank, message));
  }
  return absl::OkStatus();
}

Status ProducerCore::onMessage(Rank rank, const v1::Message& message) {
  Peer& peer = peers_[rank.value];
  const bool running = peer.state.is(PeerState::kBound) || peer.state.is(PeerState::kRetiring);
  if (message.has_doorbell() && running) return onDoorbell(rank, message.doorbell());
  if (message.has_pool_attached() && running) {
    const v1::PoolAttached& attached = message.pool_attached();
    if (attached.profile() < staging_.profileCount()) {
      // Without memory for it nothing is copied from it either, until it is asked for again.
      if (!readStatus(attached.status()).ok()) return absl::OkStatus();
      return staging_.profile(RowIndex(attached.profile())).pool->attach(rank, attached.handle());
    }
  } else if (message.has_pool_request() && running) {
    const RowIndex row(message.pool_request().profile());
    if (row.value < staging_.profileCount()) return announce(row, peer);
  } else if (message.has_retire_unmapped() && running) {
    peer.state.move(PeerState::kUnmapped);
    if (failure_.ok()) {
      const Status reason = readStatus(message.retire_unmapped().status());
      failure_ = makeStatus(absl::StatusCode::kUnavailable,
                            describe(rank) + (reason.ok() ? " retired" : " failed: " + messageOf(reason)));
      if (!reason.ok() && callbacks_.on_failed) callLater([this, status = failure_] { callbacks_.on_failed(status); });
      retireLocked(reason);
    }
    advanceRetireLocked();
    return absl::OkStatus();
  } else if (message.has_retire_done() && peer.state.is(PeerState::kDropped)) {
    peerGone(rank);
    return absl::OkStatus();
  }
  return makeStatus(absl::StatusCode::kInternal, "message " + std::to_string(message.kind_case()) +
                                                     " is not due, or names a pool that is not there");
}

Status ProducerCore::onDoorbell(Rank rank, const v1::Doorbell& doorbell) {
  LATENTD_ASSIGN_OR_RETURN(AckLedger::Outcome outcome,
                           ledger_.onDoorbell(SequenceNumber(doorbell.sequence()), rank, *control_));
  stats_.stale_dropped += outcome.stale ? 1 : 0;
  stats_.copied_acks += outcome.copied;
  stats_.discarded_acks += outcome.discarded;
  if (!outcome.done) return absl::OkStatus();
  const AckLedger::Entry& done = *outcome.done;
  freeLater(staging_.release(done));
  ++stats_.transfers_done;
  const Clock::TimePoint now = context_.clock->now();
  const Transfer transfer{done.sequence, done.bytes, now - done.start, done.slot_wait, now, done.pooled};
  callLater([this, transfer] {
    if (callbacks_.on_transfer_done) callbacks_.on_transfer_done(transfer);
  });
  changed_.notifyAll();
  return absl::OkStatus();
}

// To free a buffer takes as long as its device works: neither under the lock, nor on the loop's thread. Until it is
// done the bytes are in use [C9].
void ProducerCore::freeLater(Staging::Freed freed) {
  if (freed.buffers.empty()) return;
  EventLoop& loop = context_.freeing != nullptr ? *context_.freeing : *context_.loop;
  loop.post([weak = weak_from_this(), freed = std::make_shared<Staging::Freed>(std::move(freed))] {
    freed->buffers.clear();
    const auto self = weak.lock();
    if (!self) return;
    const MutexLock lock(self->mutex_);
    self->staging_.unreserve(freed->bytes);
    self->changed_.notifyAll();
  });
}

}  // namespace latentd::channel
