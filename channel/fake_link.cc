#include "channel/fake_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/check.h"

namespace latentd::channel {

FakeConnection::FakeConnection() {
  for (Direction& direction : directions_) {
    direction.ready.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    LATENTD_CHECK(direction.ready.valid(), "no descriptors left for a fake connection");
  }
}

void FakeConnection::signal(Direction& direction) {
  const uint64_t one = 1;
  uint64_t ignored;
  [[maybe_unused]] ssize_t done = ::read(direction.ready.get(), &ignored, sizeof(ignored));
  if (direction.arrived.empty() && !(direction.closed && direction.held.empty())) return;
  done = ::write(direction.ready.get(), &one, sizeof(one));
}

StatusOr<Link::Sent> FakeConnection::send(Side from, const OutFrame& frame) {
  MutexLock lock(mutex_);
  Direction& direction = directions_[index(from)];
  if (direction.closed || directions_[index(opposite(from))].closed) {
    return makeStatus(absl::StatusCode::kUnavailable, "the peer is gone");
  }
  if (direction.blocked) return Link::Sent::kWouldBlock;
  std::string bytes = frame.bytes;
  if (direction.tamper && !direction.tamper(bytes)) return Link::Sent::kYes;
  (direction.holding ? direction.held : direction.arrived).push_back(std::move(bytes));
  signal(direction);
  return Link::Sent::kYes;
}

Link::Received FakeConnection::receive(Side to, Frame& frame) {
  MutexLock lock(mutex_);
  Direction& direction = directions_[index(opposite(to))];
  frame.fds.clear();
  frame.fds_lost = false;
  Link::Received received = Link::Received::kNothing;
  if (!direction.arrived.empty()) {
    frame.bytes = std::move(direction.arrived.front());
    direction.arrived.pop_front();
    received = Link::Received::kFrame;
  } else if (direction.closed && direction.held.empty()) {
    received = Link::Received::kClosed;
  }
  signal(direction);
  return received;
}

void FakeConnection::close(Side who) {
  MutexLock lock(mutex_);
  directions_[index(who)].closed = true;
  signal(directions_[index(who)]);
}

void FakeConnection::hold(Side from, bool held) {
  MutexLock lock(mutex_);
  Direction& direction = directions_[index(from)];
  direction.holding = held;
  if (held) return;
  for (std::string& bytes : direction.held)
    direction.arrived.push_back(std::move(bytes));
  direction.held.clear();
  signal(direction);
}

void FakeConnection::block(Side from, bool blocked) {
  MutexLock lock(mutex_);
  directions_[index(from)].blocked = blocked;
}

void FakeConnection::tamper(Side from, Tamper change) {
  MutexLock lock(mutex_);
  directions_[index(from)].tamper = std::move(change);
}

void FakeConnection::inject(Side from, const std::string& bytes) {
  MutexLock lock(mutex_);
  directions_[index(from)].arrived.push_back(bytes);
  signal(directions_[index(from)]);
}

FakeLink::FakeLink(std::shared_ptr<FakeConnection> connection, FakeBackend::Side self)
    : connection_(std::move(connection)), self_(self) {}

FakeLink::~FakeLink() { connection_->close(self_); }

StatusOr<Link::Sent> FakeLink::send(const OutFrame& frame) { return connection_->send(self_, frame); }

StatusOr<Link::Received> FakeLink::receive(Frame& frame) { return connection_->receive(self_, frame); }

}  // namespace latentd::channel
