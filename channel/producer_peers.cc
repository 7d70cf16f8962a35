#include <sys/epoll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "channel/handshake.h"
#include "channel/limits.h"
#include "channel/message.h"
#include "channel/producer_core.h"

// The part of ProducerCore that runs on the loop's thread: connections, messages of consumer ranks, and the end.
namespace latentd::channel {
namespace {

// A connection is tried again after this when no descriptor was free for it.
constexpr std::chrono::milliseconds kAcceptPause{100};
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

// ---- connections ---------------------------------------------------------------------------------------------

Status ProducerCore::listen(const std::string& address) {
  if (!publishes_) return absl::OkStatus();
  const uint64_t bytes = ControlBlock::bytesFor(spec_);
  LATENTD_ASSIGN_OR_RETURN(control_memory_, context_.backend->createControl("latentd-control", bytes));
  control_ = ControlBlock::format(control_memory_->memory(), spec_, rank_);
  LATENTD_ASSIGN_OR_RETURN(listener_, context_.backend->listen(address, spec_.consumer_ranks + kStrayConnectionsMax));
  LATENTD_ASSIGN_OR_RETURN(listener_watch_,
                           context_.loop->watch(listener_->pollFd(), EPOLLIN, [weak = weak_from_this()](uint32_t) {
                             if (const auto self = weak.lock()) {
                               self->onConnection();
                             }
                           }));
  return absl::OkStatus();
}

void ProducerCore::onConnection() {
  for (;;) {
    StatusOr<std::unique_ptr<Link>> accepted = listener_->accept();
    if (!accepted.ok() && accepted.status().code() != absl::StatusCode::kPermissionDenied) {
      context_.loop->setEvents(listener_watch_, 0);
      context_.loop->addTimer(context_.clock->now() + kAcceptPause, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self && self->listener_) self->context_.loop->setEvents(self->listener_watch_, EPOLLIN);
      });
      return;
    }
    if (accepted.ok() && *accepted == nullptr) return;
    const uint64_t id = next_stranger_++;
    Stranger stranger;
    if (accepted.ok()) stranger.link = *std::move(accepted);
    StatusOr<EventLoop::Watch> watch = absl::InternalError("refused");
    if (stranger.link != nullptr && strangers_.size() < spec_.consumer_ranks + kStrayConnectionsMax) {
      watch = context_.loop->watch(stranger.link->pollFd(), EPOLLIN, [weak = weak_from_this(), id](uint32_t) {
        if (const auto self = weak.lock()) self->onStranger(id);
      });
    }
    if (!watch.ok()) {
      MutexLock lock(mutex_);
      ++stats_.handshakes_refused;
      continue;
    }
    stranger.watch = *watch;
    stranger.deadline =
        context_.loop->addTimer(context_.clock->now() + spec_.progress_timeout, [weak = weak_from_this(), id] {
          if (const auto self = weak.lock()) self->dismiss(id);
        });
    strangers_.emplace(id, std::move(stranger));
  }
}

void ProducerCore::dismiss(uint64_t id) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  context_.loop->unwatch(found->second.watch);
  context_.loop->cancelTimer(found->second.deadline);
  // A stranger whose link was taken over has bound.
  if (found->second.link != nullptr) {
    MutexLock lock(mutex_);
    ++stats_.handshakes_refused;
  }
  strangers_.erase(found);
}

void ProducerCore::onStranger(uint64_t id) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  Stranger& stranger = found->second;
  Frame frame;
  const StatusOr<Link::Received> received = stranger.link->receive(frame);
  if (received.ok() && *received == Link::Received::kNothing) return;
  v1::Message message;
  const bool understood = received.ok() && *received == Link::Received::kFrame && parseMessage(frame, message).ok();
  if (!understood) return dismiss(id);
  if (message.has_hello() && !stranger.rank) {
    const Status greeted = greet(stranger, message.hello());
    if (greeted.ok()) return;
    v1::Message refusal = newMessage();
    writeStatus(greeted, *refusal.mutable_refused()->mutable_status());
    const StatusOr<OutFrame> out = encodeMessage(refusal);
    if (out.ok()) stranger.link->send(*out).IgnoreError();
  } else if (message.has_bound() && stranger.rank && message.epoch() == spec_.consumer_epoch.value) {
    bind(stranger).IgnoreError();  // a link that does not open is dropped, and the rank connects again
  }
  dismiss(id);
}

Status ProducerCore::greet(Stranger& stranger, const v1::Hello& hello) {
  const bool stale =
      hello.producer_epoch() != spec_.producer_epoch.value || hello.consumer_epoch() != spec_.consumer_epoch.value;
  const StatusOr<Rank> rank = checkHello(hello, spec_, rank_);
  {
    MutexLock lock(mutex_);
    if (stale) ++stats_.stale_dropped;
    LATENTD_RETURN_IF_ERROR(rank.status());
    if (!failure_.ok()) return annotate(failure_, "this producer ended");
    bool taken = !peers_[rank->value].state.is(PeerState::kAbsent);
    for (const auto& [id, other] : strangers_)
      taken = taken || other.rank == *rank;
    if (taken) return makeStatus(absl::StatusCode::kAlreadyExists, describe(*rank) + " is connected already");
  }
  v1::Message message = newMessage();
  Handle handle = control_memory_->handle();
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_version(kProtocolVersion);
  welcome.set_control_bytes(ControlBlock::bytesFor(spec_));
  welcome.set_control(handle.bytes);
  LATENTD_ASSIGN_OR_RETURN(const OutFrame frame, encodeMessage(message, std::move(handle)));
  LATENTD_RETURN_IF_ERROR(stranger.link->send(frame).status());
  stranger.rank = *rank;
  return absl::OkStatus();
}

Status ProducerCore::bind(Stranger& stranger) {
  const Rank rank = *stranger.rank;
  context_.loop->unwatch(stranger.watch);
  MutexLock lock(mutex_);
  Peer& peer = peers_[rank.value];
  if (!peer.state.is(PeerState::kAbsent)) return failure_;
  LATENTD_RETURN_IF_ERROR(peer.link.open(std::move(stranger.link), [weak = weak_from_this(), rank](uint32_t events) {
    if (const auto self = weak.lock()) self->onPeer(rank, events);
  }));
  peer.state.move(PeerState::kBound);
  bound_ = std::all_of(peers_.begin(), peers_.end(), [](const Peer& each) { return each.state.is(PeerState::kBound); });
  if (bound_ && callbacks_.on_bound) callLater(callbacks_.on_bound);
  changed_.notifyAll();
  return absl::OkStatus();
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
  failLocked(makeStatus(absl::StatusCode::kInternal, describe(rank) + " broke the protocol: " + messageOf(read)));
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
  // Unmapping large buffers takes time: not under the lock.
  auto freed = std::make_shared<std::vector<std::unique_ptr<ExportedPool>>>(staging_.release(done));
  ++stats_.transfers_done;
  const Clock::TimePoint now = context_.clock->now();
  const Transfer transfer{done.sequence, done.bytes, now - done.start, done.slot_wait, now, done.pooled};
  callLater([this, transfer, freed = std::move(freed)] {
    freed->clear();
    if (callbacks_.on_transfer_done) callbacks_.on_transfer_done(transfer);
  });
  changed_.notifyAll();
  return absl::OkStatus();
}

// ---- the end -------------------------------------------------------------------------------------------------

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
