#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "channel/fake_backend.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace latentd::channel {

// Both directions of one connection inside a process. Each receiver has an eventfd that is readable while something is
// there for it. Owners: the two FakeLinks. Thread: any. States: open -> closed by either end. Failure: none.
class FakeConnection {
 public:
  using Side = FakeBackend::Side;
  using Tamper = std::function<bool(std::string& bytes)>;

  FakeConnection();

  StatusOr<Link::Sent> send(Side from, const OutFrame& frame) EXCLUDES(mutex_);
  Link::Received receive(Side to, Frame& frame) EXCLUDES(mutex_);
  int pollFd(Side to) const { return directions_[index(opposite(to))].ready.get(); }
  // What the side sent before still arrives.
  void close(Side who) EXCLUDES(mutex_);

  void hold(Side from, bool held) EXCLUDES(mutex_);
  void block(Side from, bool blocked) EXCLUDES(mutex_);
  void tamper(Side from, Tamper change) EXCLUDES(mutex_);
  void inject(Side from, const std::string& bytes) EXCLUDES(mutex_);

  static Side opposite(Side side) { return side == Side::kConsumer ? Side::kProducer : Side::kConsumer; }

 private:
  struct Direction {
    UniqueFd ready;
    std::deque<std::string> arrived;  // bounded by the protocol's own bounds
    std::deque<std::string> held;
    bool holding = false;
    bool blocked = false;
    bool closed = false;  // the sender is gone
    Tamper tamper;
  };

  static size_t index(Side from) { return from == Side::kConsumer ? 0 : 1; }
  void signal(Direction& direction) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::array<Direction, 2> directions_;  // by sender; GUARDED_BY(mutex_), save the constant `ready`
};

class FakeLink final : public Link {
 public:
  FakeLink(std::shared_ptr<FakeConnection> connection, FakeBackend::Side self);
  ~FakeLink() override;
  StatusOr<Sent> send(const OutFrame& frame) override;
  StatusOr<Received> receive(Frame& frame) override;
  int pollFd() const override { return connection_->pollFd(self_); }

 private:
  const std::shared_ptr<FakeConnection> connection_;  // owners: both links, and the backend's list for faults
  const FakeBackend::Side self_;
};

}  // namespace latentd::channel
