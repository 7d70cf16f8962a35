#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "mesh/round_flags.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace latentd::mesh {

// Looks after rounds that devices wait for in their streams, where no host does: whether the peers live, and whether
// rounds go on. Once the rank has ended it lets the device through, as often as it takes: what it then computes is
// nobody's.
// Owner: a ScatterMemory; the flags outlive it. Thread: begun() from one, end() from any; threads of its own look and
// give up. States: idle <-> a round is under way -> ended. Failure: none of its own.
class RoundWatch {
 public:
  // give_up: called once, from a thread of its own, with what is in the way: UNAVAILABLE for a peer that is gone,
  // DEADLINE_EXCEEDED where no round began or came to its end for `timeout`. It ends the mesh, and so calls end().
  RoundWatch(RoundFlags& flags, std::chrono::milliseconds timeout, std::function<void(const Status&)> give_up);
  ~RoundWatch();

  // Streams will wait for this round.
  void begun(uint32_t round) EXCLUDES(mutex_);
  void end() noexcept EXCLUDES(mutex_);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  void run() EXCLUDES(mutex_);
  // Whether the device has a round before it.
  bool underWay() const REQUIRES(mutex_) { return static_cast<int32_t>(flags_.reached() - round_) < 0; }
  void look() REQUIRES(mutex_);

  RoundFlags& flags_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(const Status&)> give_up_;
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;
  uint32_t round_ GUARDED_BY(mutex_) = 0;    // begun last
  uint32_t reached_ GUARDED_BY(mutex_) = 0;  // at the last look
  TimePoint progress_ GUARDED_BY(mutex_);
  std::thread giving_up_ GUARDED_BY(mutex_);
  std::thread thread_;  // declared last: uses the rest
};

}  // namespace latentd::mesh
