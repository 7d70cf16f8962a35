#include "channel/peer_link.h"

#include <sys/epoll.h>

#include <string>
#include <utility>

#include "channel/limits.h"
#include "runtime/base/check.h"

namespace latentd::channel {

Status PeerLink::open(std::unique_ptr<Link> link, EventLoop::Ready ready) {
  LATENTD_CHECK(link_ == nullptr, "a link is attached once");
  MutexLock lock(outbox_->mutex);
  outbox_->events = EPOLLIN;
  LATENTD_ASSIGN_OR_RETURN(watch_, loop_->watch(link->pollFd(), outbox_->events, std::move(ready)));
  link_ = std::move(link);
  flushLocked().IgnoreError();  // a peer that is dead already is noticed by reading
  return absl::OkStatus();
}

void PeerLink::close() {
  if (link_ == nullptr) return;
  MutexLock lock(outbox_->mutex);
  loop_->unwatch(watch_);
  link_.reset();
  outbox_->frames.clear();
}

Status PeerLink::enqueue(OutFrame frame) {
  MutexLock lock(outbox_->mutex);
  if (outbox_->frames.size() >= kOutboxFramesMax) {
    return makeStatus(absl::StatusCode::kResourceExhausted,
                      "a peer has not read its last " + std::to_string(outbox_->frames.size()) + " messages");
  }
  outbox_->frames.push_back(std::move(frame));
  return absl::OkStatus();
}

Status PeerLink::send(OutFrame frame) {
  LATENTD_RETURN_IF_ERROR(enqueue(std::move(frame)));
  return flush();
}

Status PeerLink::flush() {
  MutexLock lock(outbox_->mutex);
  return flushLocked();
}

Status PeerLink::flushLocked() {
  if (link_ == nullptr) return absl::OkStatus();
  while (!outbox_->frames.empty()) {
    LATENTD_ASSIGN_OR_RETURN(const Link::Sent sent, link_->send(outbox_->frames.front()));
    if (sent == Link::Sent::kWouldBlock) break;
    outbox_->frames.pop_front();
  }
  updateEvents();
  return absl::OkStatus();
}

void PeerLink::setMuted(bool muted) {
  MutexLock lock(outbox_->mutex);
  outbox_->muted = muted;
  updateEvents();
}

void PeerLink::updateEvents() {
  const uint32_t wanted =
      (outbox_->muted ? 0u : uint32_t{EPOLLIN}) | (outbox_->frames.empty() ? 0u : uint32_t{EPOLLOUT});
  if (wanted == outbox_->events) return;
  outbox_->events = wanted;
  loop_->setEvents(watch_, wanted);
}

}  // namespace latentd::channel
