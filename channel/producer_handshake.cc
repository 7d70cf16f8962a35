#include <sys/epoll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "channel/handshake.h"
#include "channel/limits.h"
#include "channel/message.h"
#include "channel/producer_core.h"

// The part of ProducerCore that lets consumer ranks connect.
namespace latentd::channel {
namespace {

// A connection is tried again after this when no descriptor was free for it.
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

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

}  // namespace latentd::channel
