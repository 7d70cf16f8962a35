#include "mesh/mesh_end.h"

#include <utility>

namespace latentd::mesh {
void MeshEnd::onEnd(std::function<void()> close) { close_ = std::move(close); }

Status MeshEnd::end(const Status& cause) {
  Status first;
  {
    const MutexLock lock(mutex_);
    if (cause_) return *cause_;
    first = first_cause_.give(cause);
    cause_ = first;
  }
  if (close_) close_();
  return first;
}

std::optional<Status> MeshEnd::cause() {
  {
    const MutexLock lock(mutex_);
    if (cause_) return cause_;
  }
  const std::optional<Status> theirs = first_cause_.given();
  if (!theirs) return std::nullopt;
  return end(*theirs);
}

}  // namespace latentd::mesh
