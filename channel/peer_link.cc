#include "channel/peer_link.h"

#include <sys/epoll.h>

#include <string>
#include <utility>

#include "channel/limits.h"
#include "runtime/base/check.h"

namespace latentd::channel {

Status PeerLink::open(std::unique_ptr<Link> link, EventLoop::Ready ready) {
  LATENTD_CHECK(link_ == nullptr, "a link is attached once");
  events_ = EPOLLIN;
  LATENTD_ASSIGN_OR_RETURN(watch_, loop_->watch(link->pollFd(), events_, std::move(ready)));
  link_ = std::move(link);
  flush().IgnoreError();  // a peer that is dead already is noticed by reading
  return absl::OkStatus();
}

void PeerLink::close() {
  if (link_ == nullptr) return;
  loop_->unwatch(watch_);
  link_.reset();
  outbox_.clear();
}

Status PeerLink::send(OutFrame frame) {
  if (outbox_.size() >= kOutboxFramesMax) {
    return makeStatus(absl::StatusCode::kResourceExhausted,
                      "a peer has not read its last " + std::to_string(outbox_.size()) + " messages");
  }
  outbox_.push_back(std::move(frame));
  return link_ != nullptr && outbox_.size() == 1 ? flush() : absl::OkStatus();
}

Status PeerLink::flush() {
  while (!outbox_.empty()) {
    LATENTD_ASSIGN_OR_RETURN(const Link::Sent sent, link_->send(outbox_.front()));
    if (sent == Link::Sent::kWouldBlock) break;
    outbox_.pop_front();
  }
  updateEvents();
  return absl::OkStatus();
}

void PeerLink::setMuted(bool muted) {
  muted_ = muted;
  updateEvents();
}

void PeerLink::updateEvents() {
  const uint32_t wanted = (muted_ ? 0u : uint32_t{EPOLLIN}) | (outbox_.empty() ? 0u : uint32_t{EPOLLOUT});
  if (wanted == events_) return;
  events_ = wanted;
  loop_->setEvents(watch_, wanted);
}

}  // namespace latentd::channel
