#include "mesh/round_watch.h"

#include <string>
#include <utility>

namespace latentd::mesh {
namespace {

using std::chrono::steady_clock;

// How soon a death is noticed, and a device let through.
constexpr std::chrono::milliseconds kLook{20};
// Nothing is under way until somebody says so.
constexpr std::chrono::hours kIdle{1};
// Past every round that streams may wait for, as signed distances go.
constexpr uint32_t kPast = 1u << 30;

}  // namespace

RoundWatch::RoundWatch(RoundFlags& flags, std::chrono::milliseconds timeout, std::function<void(const Status&)> give_up)
    : flags_(flags), timeout_(timeout), give_up_(std::move(give_up)), thread_([this] { run(); }) {}

RoundWatch::~RoundWatch() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notifyAll();
  }
  thread_.join();
  std::thread giving_up;
  {
    const MutexLock lock(mutex_);
    giving_up = std::move(giving_up_);
  }
  if (giving_up.joinable()) giving_up.join();
}

void RoundWatch::begun(uint32_t round) {
  const MutexLock lock(mutex_);
  const bool idle = !underWay();
  round_ = round;
  progress_ = steady_clock::now();
  if (idle) changed_.notifyAll();
}

void RoundWatch::end() noexcept {
  const MutexLock lock(mutex_);
  ended_ = true;
  flags_.pass(round_ + kPast);
  changed_.notifyAll();
}

void RoundWatch::look() {
  // Peers that still go on may have written over it.
  if (ended_) return flags_.pass(round_ + kPast);
  if (giving_up_.joinable()) return;
  const auto now = steady_clock::now();
  if (const uint32_t reached = flags_.reached(); reached != reached_) {
    reached_ = reached;
    progress_ = now;
  }
  Status trouble = flags_.trouble(RoundFlags::Mark::kWritten, round_);
  if (trouble.ok() && now - progress_ >= timeout_) {
    trouble = absl::DeadlineExceededError("scatter round " + std::to_string(reached_ + 1) + ": not done within " +
                                          std::to_string(timeout_.count()) + " ms");
  }
  // What ends the mesh closes connections, which may take as long as the device is held.
  if (!trouble.ok()) giving_up_ = std::thread([this, trouble] { give_up_(trouble); });
}

void RoundWatch::run() {
  const MutexLock lock(mutex_);
  while (!stopped_) {
    if (underWay()) look();
    changed_.waitUntil(mutex_, steady_clock::now() + (underWay() ? kLook : kIdle));
  }
}

}  // namespace latentd::mesh
