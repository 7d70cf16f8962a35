#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "channel/backend.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"

namespace latentd::channel {

// A link with the frames that its socket did not take yet, and its place in the loop. Frames may be queued before the
// link exists: they leave when it is attached.
// Owner: an endpoint. Thread: the endpoint's lock, but flush() from any thread; open() and close() on the loop's thread
// (or before it runs).
// States: unattached -> open -> closed. Failure: send() returns UNAVAILABLE when the peer is gone and
// RESOURCE_EXHAUSTED when it does not read; closing is left to the owner, who learns of it by receive().
class PeerLink {
 public:
  explicit PeerLink(EventLoop& loop) : loop_(&loop), outbox_(std::make_unique<Outbox>()) {}

  // Starts to watch; `ready` runs on the loop's thread.
  Status open(std::unique_ptr<Link> link, EventLoop::Ready ready);
  bool isOpen() const { return link_ != nullptr; }
  void close();

  // Sends now if it can, in order.
  Status send(OutFrame frame);
  // The same in two steps, where the endpoint's lock is to be free by the time the peer wakes up: the peer may take
  // this thread's core, and its answer must not find the lock taken.
  Status enqueue(OutFrame frame);
  // Sends what is queued; also after the link became writable.
  Status flush();
  StatusOr<Link::Received> receive(Frame& frame) { return link_->receive(frame); }

  // While muted the loop does not report readability: somebody else polls.
  void setMuted(bool muted);
  int pollFd() const { return link_->pollFd(); }

 private:
  // Taken after the endpoint's lock where both are.
  struct Outbox {
    Mutex mutex;
    std::deque<OutFrame> frames GUARDED_BY(mutex);  // at most kOutboxFramesMax
    bool muted GUARDED_BY(mutex) = false;
    uint32_t events GUARDED_BY(mutex) = 0;  // what the loop waits for
  };

  Status flushLocked() REQUIRES(outbox_->mutex);
  void updateEvents() REQUIRES(outbox_->mutex);

  EventLoop* loop_;
  std::unique_ptr<Link> link_;  // set and reset under both locks, so either is enough to read it
  EventLoop::Watch watch_;      // as link_
  std::unique_ptr<Outbox> outbox_;
};

}  // namespace latentd::channel
