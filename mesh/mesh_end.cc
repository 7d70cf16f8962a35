#include "mesh/mesh_end.h"

#include <chrono>
#include <utility>

namespace latentd::mesh {
namespace {

// Of a cause that a peer gives right after its library closed the connections (Gloo's own time-outs do that); everybody
// else gives it before. A rank that was killed costs its peers this much.
constexpr std::chrono::milliseconds kPeerCauseWait{50};

}  // namespace

void MeshEnd::onEnd(std::function<void()> close) { close_ = std::move(close); }

Status MeshEnd::end(const Status& cause) {
  Status first;
  {
    const MutexLock lock(mutex_);
    if (cause_) return *cause_;
    first = first_cause_.give(cause);
    cause_ = first;
    ended_.store(true, std::memory_order_release);
  }
  if (close_) close_();
  return first;
}

Status MeshEnd::endAfterPeer(const Status& cause) {
  return end(first_cause_.await(std::chrono::steady_clock::now() + kPeerCauseWait).value_or(cause));
}

std::optional<Status> MeshEnd::cause() const {
  if (!ended_.load(std::memory_order_acquire)) return std::nullopt;
  const MutexLock lock(mutex_);
  return cause_;
}

}  // namespace latentd::mesh
