#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "channel/backend.h"
#include "runtime/base/event_loop.h"

namespace latentd::channel {

// A link with the frames that its socket did not take yet, and its place in the loop. Frames may be queued before the
// link exists: they leave when it is attached.
// Owner: an endpoint. Thread: the endpoint's lock; open() and close() on the loop's thread (or before it runs).
// States: unattached -> open -> closed. Failure: send() returns UNAVAILABLE when the peer is gone and
// RESOURCE_EXHAUSTED when it does not read; closing is left to the owner, who learns of it by receive().
class PeerLink {
 public:
  explicit PeerLink(EventLoop& loop) : loop_(&loop) {}

  // Starts to watch; `ready` runs on the loop's thread.
  Status open(std::unique_ptr<Link> link, EventLoop::Ready ready);
  bool isOpen() const { return link_ != nullptr; }
  void close();

  // Sends now if it can, in order.
  Status send(OutFrame frame);
  // After the link became writable.
  Status flush();
  StatusOr<Link::Received> receive(Frame& frame) { return link_->receive(frame); }

  // While muted the loop does not report readability: somebody else polls.
  void setMuted(bool muted);
  int pollFd() const { return link_->pollFd(); }

 private:
  void updateEvents();

  EventLoop* loop_;
  std::unique_ptr<Link> link_;
  EventLoop::Watch watch_;
  std::deque<OutFrame> outbox_;  // at most kOutboxFramesMax
  bool muted_ = false;
  uint32_t events_ = 0;  // what the loop waits for
};

}  // namespace latentd::channel
